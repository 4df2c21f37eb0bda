"""`make bench-bucket`: the same build into a folder and into a bucket on loopback, by turns.

The S3 server (tests/support/file_bucket.py) has a process of its own on the same cores. Its processor time is told,
because the run could have used it. Both outputs are compared, byte for byte.

    python benchmarks/bucket.py [--files FILE.parquet …] [--copies 5] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from bench_corpus import find_corpora

SERVER = Path(__file__).parent.parent / "tests" / "support" / "file_bucket.py"
BUCKET = "bench-bucket"
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Measured:
    """Seconds of one run, of the clock and of all its processes' processor time."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--copies", type=int, default=5, help="of each file, so that a run takes a while")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shard-tokens", default="20M")
    options = parser.parse_args()
    files = options.files or find_corpora().large.parquet
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = folder / "inputs"
        inputs.mkdir()
        for copy in range(options.copies):
            for number, file in enumerate(files):
                (inputs / f"{copy:03}_{number:03}.parquet").symlink_to(Path(file).resolve())
        words = ["--input", str(inputs), "--shard-tokens", options.shard_tokens, "--quiet"]
        compare(folder, words, options.rounds)


def compare(folder: Path, words: list[str], rounds: int) -> None:
    """Run both by turns, and print a table of medians."""
    (folder / "objects").mkdir()
    command = [sys.executable, str(SERVER), str(folder / "objects")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().strip().partition("=")[2]
        os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        process = psutil.Process(server.pid)
        disk: list[Measured] = []
        bucket: list[Measured] = []
        served: list[float] = []  # the server's processor time
        try:
            for number in range(rounds):  # in turns, because the machine changes its mind
                local, remote = folder / "local", f"s3://{BUCKET}/{number}"
                disk.append(run("build", *words, "--out", str(local)))
                before = process.cpu_times()
                bucket.append(run("build", *words, "--out", remote, "--scratch", str(folder / "scratch")))
                after = process.cpu_times()
                served.append(after.user + after.system - before.user - before.system)
                check_same(local, f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/{number}")
                shutil.rmtree(local)
        finally:
            server.terminate()
    for name, runs in (("folder", disk), ("bucket", bucket)):
        wall, processor = median(run.wall for run in runs), median(run.processor for run in runs)
        print(f"| {name} | {wall:.1f} s | {processor:.1f} s of processor time |")
    speed = median(run.wall for run in disk) / median(run.wall for run in bucket)
    work = median(run.processor for run in disk) / median(run.processor for run in bucket)
    print(f"| bucket's share of the folder's speed | {speed:.0%} | {work:.0%} by processor time |")
    print(f"| the server's processor time, a run | | {median(served):.1f} s |")


def run(*words: str) -> Measured:
    """Run a subcommand, and measure all of it, from the start of the process to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "fineweb_shards", *words], check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def check_same(local: Path, remote: str) -> None:
    """Compare the shards of both, by plain requests."""
    paths = sorted(local.glob("*.npy"))
    assert paths, "nothing was built"
    for path in paths:
        with path.open("rb") as file, urllib.request.urlopen(f"{remote}/{path.name}") as answer:
            while data := file.read(_READ_BYTES):
                assert answer.read(_READ_BYTES) == data, f"{path.name} differs"
            assert not answer.read(1), f"{path.name} is longer"


if __name__ == "__main__":
    main()
