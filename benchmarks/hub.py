"""`make bench-hub`: the same files from the disk, from a hub on loopback, and with 50 ms added to every request; and
the same documents from the hub as `.jsonl.zst`. All in one run, so that only the ratios count. The hub
(tests/support/standin_hub.py) runs on the same cores.

    python benchmarks/hub.py [--files FILE.parquet …] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from bench_corpus import DATA, Corpus, find_corpora
from measure import run_program
from programs import HERE, SMALL_SHARDS, Program, our_program

from fineweb_shards.units import show_count

STAND_IN = [sys.executable, "-m", "tests.support.standin_hub"]
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
        parquet, packed = serve_folder(scratch, corpus), serve_packed(scratch, corpus)
        local: list[Speed] = []
        remote: dict[str, list[Speed]] = {}
        for _ in range(options.rounds):  # in turns, because the machine changes its mind
            local.append(
                measure(our_program("disk", corpus, scratch / "local", corpus.parquet, shard_tokens=SMALL_SHARDS))
            )
            for latency in LATENCIES_MS:
                for kind, served in (("parquet", parquet), (".jsonl.zst", packed)):
                    speeds = remote.setdefault(f"{kind} from the hub, {latency} ms", [])
                    speeds.append(measure_hub(scratch, corpus, served, latency))
        for name, speeds in {"parquet from the disk": local, **remote}.items():
            print(show_row(name, speeds, local))


@dataclass(frozen=True)
class Speed:
    """Of one run, after the first tokens; the processor time is that of parent and workers."""

    tokens_per_second: float
    nanoseconds_per_token: float


def show_row(name: str, speeds: list[Speed], local: list[Speed]) -> str:
    speed, from_disk = (median(one.tokens_per_second for one in some) for some in (speeds, local))
    spent = median(one.nanoseconds_per_token for one in speeds)
    share = f"{speed / from_disk:.0%} of the disk's"
    return f"| {name} | {show_count(speed)} tokens/s, {share}, {spent:.0f} ns of processor time a token |"


def serve_folder(scratch: Path, corpus: Corpus) -> Path:
    """A folder with nothing but the parquet files."""
    served = scratch / "served"
    served.mkdir()
    for path in map(Path, corpus.parquet):
        os.link(path, served / path.name)
    return served


def serve_packed(scratch: Path, corpus: Corpus) -> Path:
    """A folder with the documents of each parquet file as `.jsonl.zst`."""
    served = scratch / "packed"
    served.mkdir()
    for path in map(Path, corpus.parquet):
        texts = pq.read_table(path, columns=["text"]).column("text").to_pylist()
        with pa.CompressedOutputStream(str(served / f"{path.stem}.jsonl.zst"), "zstd") as packed:
            for text in texts:
                packed.write(orjson.dumps({"text": text}) + b"\n")
    return served


def measure(program: Program) -> Speed:
    """Run a program and measure it from the first token to the end of the process."""
    run = run_program(program.words, program.out)
    program.check(run.output)
    tokens = program.tokens - run.first_tokens
    spent = run.parent_seconds + run.worker_seconds
    return Speed(tokens / (run.seconds - run.first_seconds), spent / tokens * 1e9)


def measure_speed(program: Program) -> float:
    """Tokens a second."""
    return measure(program).tokens_per_second


def measure_hub(scratch: Path, corpus: Corpus, served: Path, latency_ms: int) -> Speed:
    words = [*STAND_IN, str(served), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=HERE.parent) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip().partition("=")[2]
        os.environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(scratch / f"home-{served.name}")}
        os.environ["NO_PROXY"] = "127.0.0.1,localhost"
        try:
            return measure(
                our_program("hub", corpus, scratch / f"hub{latency_ms}", [], *DATASET, shard_tokens=SMALL_SHARDS)
            )
        finally:
            server.terminate()
            server.stdout.read()  # what it was asked for, which it tells at the end


if __name__ == "__main__":
    main()
