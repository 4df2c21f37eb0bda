"""A night in half an hour: one build from a hub on loopback, slowed down, with one fault a minute.

    python -m tests.night --minutes 30

Workers are killed, the whole run is killed or interrupted and started again, the network goes away or plays tricks,
memory and disk get tight (where this machine lets us: Linux, root). At the end every shard must be what a plain loop
over tiktoken makes of the same documents.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.standin_faults import CutBody, Fault, FaultPlan, IgnoreRange, LastingFault, Reset, Stall, Status
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

REPO = "HuggingFaceFW/fineweb-edu"
FILES, ROW_GROUPS, SHARD_TOKENS = 4, 500, 200_000
LONGEST_STALL_SECONDS = 4.0
TRICKS: list[Fault] = [Reset(), Reset(0.5), CutBody(), IgnoreRange(), Stall(0.5), Status(429, retry_after=1)]
TRICKS += [Status(code) for code in (408, 500, 502, 503, 504)]


@dataclass
class Pace(FaultPlan):
    """Stalls requests that come too early, so that the run lasts as long as the night does."""

    requests: int
    seconds: float
    _begin: float = field(default_factory=time.monotonic)

    def choose(self, number: int) -> Fault | None:
        due = self._begin + self.seconds * number / self.requests
        ahead = due - time.monotonic()
        return Stall(seconds=min(ahead, LONGEST_STALL_SECONDS)) if ahead > 0.05 else None


@dataclass
class Tricks(FaultPlan):
    """Every second answer goes wrong while `active`."""

    active: bool = False
    _chooser: random.Random = field(default_factory=lambda: random.Random(4))

    def choose(self, number: int) -> Fault | None:
        return self._chooser.choice(TRICKS) if self.active and self._chooser.random() < 0.5 else None


class Run:
    """The build, started again whenever it ends before its time."""

    def __init__(self, out: Path, environment: dict[str, str], screen: Path, group: Path | None) -> None:
        self.starts = 0
        self._words = runs.command(
            "build", "--dataset", REPO, "--name", "sample-10BT", "--out", out, "--workers", "2",
            "--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "12k", "--max-memory", "800M",
        )  # fmt: skip
        self._environment = {**os.environ, **environment}
        self._screen = screen
        self._group = group
        self.start()

    def start(self) -> None:
        self.starts += 1
        enter = ["sh", "-c", f'echo $$ > {self._group}/cgroup.procs; exec "$@"', "sh"] if self._group else []
        with open(self._screen, "a") as screen:
            self._process = subprocess.Popen(
                [*enter, *self._words], env=self._environment, stdout=screen, stderr=screen, start_new_session=True
            )

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    def stop(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
        self._process.wait()

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children.split()}
        return [pid for pid, words in commands.items() if "spawn_main" in words]


class Night:
    """What can go wrong, one at a time."""

    def __init__(self, run: Run, outage: LastingFault, tricks: Tricks, group: Path | None, disk: Path | None):
        self._run, self._outage, self._tricks, self._group, self._disk = run, outage, tricks, group, disk
        self._chooser = random.Random(17)
        self.faults: list[Callable[[], None]] = [
            self.kill_a_worker,
            self.kill_all_workers,
            self.kill_the_run,
            self.terminate_the_run,
            self.take_the_network_away,
            self.play_tricks,
        ]
        self.faults += [self.squeeze_memory] if group else []
        self.faults += [self.fill_the_disk] if disk else []

    def choose(self) -> Callable[[], None]:
        return self._chooser.choice(self.faults)

    def kill_a_worker(self) -> None:
        os.kill(self._chooser.choice(self._run.workers()), signal.SIGKILL)

    def kill_all_workers(self) -> None:
        for pid in self._run.workers():
            os.kill(pid, signal.SIGKILL)

    def kill_the_run(self) -> None:
        self._run.stop(signal.SIGKILL)
        self._run.start()

    def terminate_the_run(self) -> None:
        self._run.stop(signal.SIGTERM)
        self._run.start()

    def take_the_network_away(self) -> None:
        self._outage.active = True
        time.sleep(25)
        self._outage.active = False

    def play_tricks(self) -> None:
        self._tricks.active = True
        time.sleep(25)
        self._tricks.active = False

    def squeeze_memory(self) -> None:
        """Leave the run's control group a few megabytes."""
        assert self._group is not None
        old = (self._group / "memory.limit_in_bytes").exists()
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        before = (self._group / limit).read_text()
        (self._group / limit).write_text(str(int((self._group / used).read_text()) + 8 * 2**20))
        time.sleep(25)
        (self._group / limit).write_text("-1" if old else before)

    def fill_the_disk(self) -> None:
        assert self._disk is not None
        filler = self._disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        time.sleep(25)
        filler.unlink()


def make_files() -> tuple[dict[str, bytes], list[str]]:
    """FineWeb-Edu in small, and its documents in order."""
    files, everything = {}, []
    for number in range(FILES):
        documents = make_documents(ROW_GROUPS * 25, seed=700 + number)
        counts = [len(reference.encode(text)) for text in documents]
        ids = [f"<urn:uuid:{number}-{i}>" for i in range(len(documents))]
        names = {"dump": "d", "url": "u", "file_path": "f"}
        constant = {name: [value] * len(documents) for name, value in names.items()}
        table = pa.table({"text": documents, "id": ids, **constant, "token_count": counts})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=25)
        files[f"sample/10BT/{number:03d}_00000.parquet"] = buffer.getvalue()
        everything += documents
    return files, everything


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own that can be filled, or None."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def control_group() -> Iterator[Path | None]:
    """A memory control group of our own, or None."""
    old = Path("/sys/fs/cgroup/memory")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"fineweb-shards-night-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    yield group if (group / "cgroup.procs").exists() else None
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    seconds = 60 * parser.parse_args().minutes
    files, documents = make_files()
    expected = reference.digests(reference.shard_files(reference.stream(documents), SHARD_TOKENS))
    say(f"{len(documents):,} documents, {len(expected)} shards to come")
    pace = Pace(requests=FILES * ROW_GROUPS, seconds=seconds, path_contains=".parquet")
    outage = LastingFault(fault=Reset(), active=False)
    tricks = Tricks(path_contains=".parquet")
    with (
        tempfile.TemporaryDirectory() as scratch,
        small_disk(Path(scratch) / "disk") as disk,
        control_group() as group,
        StandInHub([Repository(REPO, files)], [outage, tricks, pace]) as hub,
    ):
        out = (disk or Path(scratch)) / "out"
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": f"{scratch}/home", "NO_PROXY": "127.0.0.1,localhost"}
        screen = Path(scratch) / "screen.txt"
        run = Run(out, environment, screen, group)
        night = Night(run, outage, tricks, group, disk)
        counts = spend(night, run, out)
        log = (out / ".fineweb-shards" / "log.txt").read_text()
        found = reference.digests(runs.shards_in(out))
        say(f"the run ended with exit code {run.ended} after {run.starts} starts")
        say("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        waits = {cause: log.count(f"{cause} since") for cause in ("the network", "for memory", "the disk")}
        say(f"the log has {len(log.splitlines())} lines; waits: {waits}")
        if found != expected or run.ended != 0:
            say("NOT the same shards; the screen said:\n" + screen.read_text()[-3000:])
            return 1
    say(f"all {len(found)} shards are those of an undisturbed run")
    return 0


def spend(night: Night, run: Run, out: Path) -> dict[str, int]:
    """A fault a minute until the build is complete; how often each was."""
    counts: dict[str, int] = {}
    while run.ended is None:
        deadline = time.monotonic() + 60
        while run.ended is None and time.monotonic() < deadline - 30:
            time.sleep(0.2)
        if run.ended is None:
            fault = night.choose()
            name = fault.__name__.replace("_", " ")
            counts[name] = counts.get(name, 0) + 1
            say(f"{len(list(out.glob('*.npy'))):3d} shards; {name}")
            fault()
        while run.ended is None and time.monotonic() < deadline:
            time.sleep(0.2)
    return counts


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
