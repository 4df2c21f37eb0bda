"""What `--priority` costs on a busy machine: a build beside a busy loop on every core.

    python benchmarks/priority.py [--seconds 10]

Prints the build's share of the cores, and how much the loops get done compared with no build. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_corpus import DATA, Corpus, find_corpora
from measure import processor_seconds, tokens_in

from fineweb_shards.system.machine import PRIORITIES, usable_cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    seconds = parser.parse_args().seconds
    corpus = find_corpora().part
    alone = count_turns(seconds)
    print("| `--priority` | the build's share of the cores | what the loops get done |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        for priority in PRIORITIES:
            share, turns = measure_beside(corpus, Path(folder) / priority, priority, seconds)
            print(f"| {priority} | {share:.0%} | {turns / alone:.0%} |")


def count_turns(seconds: float) -> int:
    """Of a busy loop on each core, all together."""
    with multiprocessing.Pool(usable_cores()) as pool:
        return sum(pool.map(turn, [seconds] * usable_cores(), chunksize=1))


def turn(seconds: float) -> int:
    turns, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        turns += sum(range(1000)) > 0
    return turns


def measure_beside(corpus: Corpus, out: Path, priority: str, seconds: float) -> tuple[float, int]:
    """The build's share of all cores, and the loops' turns, in the same time. With tiktoken, so that the build does not
    end meanwhile; it is ended then, because beside the loops it would take long."""
    words = [sys.executable, "-m", "fineweb_shards", "build", *corpus.parquet, "--out", str(out), "--quiet"]
    words += ["--engine", "tiktoken", "--priority", priority]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as build:
        while not tokens_in(out):
            time.sleep(0.01)
        before, begin = processor_seconds(build.pid), time.monotonic()
        turns = count_turns(seconds)
        after, end = processor_seconds(build.pid), time.monotonic()
        if build.poll() is not None:
            sys.exit(f"{priority}: the build ended before the {seconds:g} seconds were over")
        build.terminate()
    used = after.own + after.others - before.own - before.others
    return used / (end - begin) / usable_cores(), turns


if __name__ == "__main__":
    main()
