"""`make bench-ray`: the same files with processes on this machine, and with Ray on this machine, in turn.

Measured from outside, from a third of the tokens on to the last shard in the manifest, so that the start of Ray and of
its processes does not count: tokens a second, and processor time a token of the driver (the parent), of the workers,
and of Ray's own processes. On a machine that has other work, processor time is what can be compared: the share by
processor time is what the speed would be if all cores were ours.

    python benchmarks/ray_speed.py [--files FILE.parquet …] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench_corpus import find_corpora
from measure import read_times
from memory import tree_of

from fineweb_shards.units import show_count

SHARD_TOKENS = 10_000_000
LOOK_SECONDS = 0.2
EXECUTORS = ("local", "ray")
WORKERS = ("ray::encode_batches", "ray::FileProcess", "ray::IDLE", "spawn_main")


@dataclass(frozen=True)
class Seen:
    """What there is at one moment: tokens in the manifest, and processor seconds so far."""

    tokens: int
    at: float
    driver: float
    workers: float
    others: float


@dataclass(frozen=True)
class Speed:
    """Of the last two thirds. Processor times are in ns a token."""

    tokens_per_second: float
    driver_ns: float
    worker_ns: float
    other_ns: float

    @property
    def all_ns(self) -> float:
        return self.driver_ns + self.worker_ns + self.other_ns


class Watched:
    """A run, and the processor time of all its processes, also of those that have ended."""

    def __init__(self, words: list[str], out: Path) -> None:
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._out = out
        self._times: dict[int, float] = {}
        self._is_worker: dict[int, bool] = {}

    def run(self) -> Speed:
        """Wait for its end."""
        seen: list[Seen] = []
        while self._process.poll() is None:
            now = self._look()
            if now.tokens and (not seen or now.tokens > seen[-1].tokens):
                seen.append(now)
            time.sleep(LOOK_SECONDS)
        if self._process.returncode:
            sys.exit(f"{self._process.args!r} failed with exit code {self._process.returncode}")
        last = seen[-1]
        first = next(one for one in seen if one.tokens >= last.tokens / 3)
        tokens = last.tokens - first.tokens
        return Speed(
            tokens / (last.at - first.at),
            (last.driver - first.driver) / tokens * 1e9,
            (last.workers - first.workers) / tokens * 1e9,
            (last.others - first.others) / tokens * 1e9,
        )

    def _look(self) -> Seen:
        tokens = tokens_recorded(self._out)
        driver = self._process.pid
        for pid in tree_of(driver):
            own = read_times(pid)[0]
            self._times[pid] = max(own, self._times.get(pid, 0.0))
            title = title_of(pid)
            self._is_worker[pid] = self._is_worker.get(pid, False) or any(name in title for name in WORKERS)
        workers = sum(time for pid, time in self._times.items() if self._is_worker[pid])
        total = sum(self._times.values())
        own = self._times[driver]
        return Seen(tokens, time.monotonic(), own, workers, total - workers - own)


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""  # it has just ended


def tokens_recorded(out: Path) -> int:
    try:
        return sum(shard["tokens"] for shard in json.loads((out / "manifest.json").read_text())["shards"])
    except OSError:
        return 0


def measure(executor: str, files: list[str], out: Path) -> Speed:
    shutil.rmtree(out, ignore_errors=True)
    words = [sys.executable, "-m", "fineweb_shards", "build", "--out", str(out), "--executor", executor]
    words += ["--shard-tokens", str(SHARD_TOKENS), "--no-verify", "--quiet"]
    words += ["--ray-address", "local"] if executor == "ray" else []
    for file in files:
        words += ["--input", file]
    return Watched(words, out).run()


def describe(speed: Speed) -> str:
    parts = f"driver {speed.driver_ns:.2f}, workers {speed.worker_ns:.1f}, others {speed.other_ns:.1f}"
    return f"{show_count(speed.tokens_per_second):>7} tokens/s; ns a token: {parts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    files = options.files or find_corpora().large.parquet
    speeds: dict[str, list[Speed]] = {executor: [] for executor in EXECUTORS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for executor in EXECUTORS:
                speed = measure(executor, files, Path(folder) / "out")
                speeds[executor].append(speed)
                print(f"{executor:6} {describe(speed)}", flush=True)
    local, ray = (speeds[executor] for executor in EXECUTORS)
    pairs = list(zip(local, ray, strict=True))
    share = median(two.tokens_per_second / one.tokens_per_second for one, two in pairs)
    by_processor = median(one.all_ns / two.all_ns for one, two in pairs)
    print(f"Ray's speed: {share:.0%} of local processes'; share by processor time: {by_processor:.0%}")
    print(f"driver: {median(speed.driver_ns for speed in ray):.2f} ns a token")


if __name__ == "__main__":
    main()
