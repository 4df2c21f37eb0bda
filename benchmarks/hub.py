"""`make bench-hub`: the same files from the disk, from a hub on loopback, and with 50 ms added to every
request; all in one run, so that only the ratios count. The hub (tests/support/standin_hub.py) runs on the
same cores.

    python benchmarks/hub.py [--files FILE.parquet …] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench_corpus import DATA, Corpus, find_corpora
from measure import run_program
from programs import HERE, SMALL_SHARDS, Program, our_program

from fineweb_shards.units import show_count

STAND_IN = HERE.parent / "tests" / "support" / "standin_hub.py"
LATENCIES_MS = [0, 50]
DATASET = ("--dataset", "HuggingFaceFW/fineweb-edu", "--name", "sample-10BT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    corpus = find_corpora(files=options.files).part
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        scratch = Path(folder)
        served = serve_folder(scratch, corpus)
        local: list[float] = []
        remote: dict[int, list[float]] = {latency: [] for latency in LATENCIES_MS}
        for _ in range(options.rounds):  # in turns, because the machine changes its mind
            local.append(
                measure_speed(our_program("disk", corpus, scratch / "local", corpus.parquet, *SMALL_SHARDS))
            )
            for latency, speeds in remote.items():
                speeds.append(measure_hub(scratch, corpus, served, latency))
        print(f"| from the disk | {show_count(median(local))} tokens/s |")
        for latency, speeds in remote.items():
            share = f"{median(speeds) / median(local):.0%}"
            print(f"| from the hub, {latency} ms | {show_count(median(speeds))} tokens/s, {share} |")


def serve_folder(scratch: Path, corpus: Corpus) -> Path:
    """A folder with nothing but the parquet files."""
    served = scratch / "served"
    served.mkdir()
    for path in map(Path, corpus.parquet):
        os.link(path, served / path.name)
    return served


def measure_speed(program: Program) -> float:
    """Tokens a second, from the first token to the end of the process."""
    run = run_program(program.words, program.out)
    program.check(run.output)
    return (program.tokens - run.first_tokens) / (run.seconds - run.first_seconds)


def measure_hub(scratch: Path, corpus: Corpus, served: Path, latency_ms: int) -> float:
    words = [sys.executable, str(STAND_IN), str(served), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip().partition("=")[2]
        os.environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(scratch / f"home{latency_ms}")}
        os.environ["NO_PROXY"] = "127.0.0.1,localhost"
        try:
            return measure_speed(
                our_program("hub", corpus, scratch / f"hub{latency_ms}", [], *SMALL_SHARDS, *DATASET)
            )
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
