"""`make bench-hub`: the same files from the disk, from a hub on loopback, and with 50 ms added to every
request; all in one run, so that only the ratios count. The hub (tests/support/standin_hub.py) runs on the
same cores.

    python benchmarks/hub.py [--files FILE.parquet …] [--repeat 12] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from run import HERE, corpus_files, measure_speed

from fineweb_shards.units import show_count

STAND_IN = HERE.parent / "tests" / "support" / "standin_hub.py"
LATENCIES_MS = [0, 50]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--repeat", type=int, default=12, help="how many copies of them are read")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        scratch = Path(folder)
        files = options.files or [str(path) for path in corpus_files(scratch)]
        served = scratch / "served"
        served.mkdir()
        for number in range(2):
            write_large(served / f"{number:03d}_00000.parquet", files * (options.repeat // 2))
        local: list[float] = []
        remote: dict[int, list[float]] = {latency: [] for latency in LATENCIES_MS}
        for _ in range(options.rounds):  # in turns, because the machine changes its mind
            local.append(measure_speed(scratch / "local", [str(served)]))
            for latency, speeds in remote.items():
                speeds.append(measure_hub(scratch, served, latency))
        print(f"| from the disk | {show_count(median(local))} tokens/s |")
        for latency, speeds in remote.items():
            share = f"{median(speeds) / median(local):.0%}"
            print(f"| from the hub, {latency} ms | {show_count(median(speeds))} tokens/s, {share} |")


def write_large(path: Path, files: list[str]) -> None:
    """One file with many row groups, like those on the hub, out of several small ones."""
    with pq.ParquetWriter(path, pq.read_schema(files[0])) as writer:
        for file in files:
            opened = pq.ParquetFile(file)
            for group in range(opened.num_row_groups):
                writer.write_table(opened.read_row_group(group))


def measure_hub(scratch: Path, served: Path, latency_ms: int) -> float:
    words = [sys.executable, str(STAND_IN), str(served), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip().partition("=")[2]
        os.environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(scratch / f"home{latency_ms}")}
        os.environ["NO_PROXY"] = "127.0.0.1,localhost"
        try:
            flags = ["--dataset", "HuggingFaceFW/fineweb-edu", "--name", "sample-10BT"]
            return measure_speed(scratch / f"hub{latency_ms}", [], *flags)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
