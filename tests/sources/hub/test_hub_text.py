"""Text files on the hub, read as files by the readers of local ones: any form, any size of a batch, through crashes and
faults, the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import forked, runs
from tests.support.promises import Tries
from tests.support.standin_faults import (
    CutBody,
    ExpiredMidBody,
    Fault,
    FaultPlan,
    IgnoreRange,
    RandomFaults,
    RequestRecord,
    Reset,
    Stall,
    Status,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository
from tests.support.text_datasets import (
    DATASET,
    REPO,
    build,
    build_with_workers,
    environment,
    expected_shards,
    fetched_ranges,
    left_in_downloads,
    text_repository,
    write_files,
)

LARGE = {
    "lines": ["jsonl"],
    "text": ["txt"],
    "zst": ["jsonl.zst"] * 5,
    "zstd": ["jsonl.zstd"] * 2,
    "json-gz": ["json.gz"] * 2,
    "csv": ["csv"],
    "tsv-gz": ["tsv.gz"] * 2,
    "small": ["jsonl"] * 4,
    "mixed": ["jsonl.zst", "txt", "csv", "json", "tsv.gz", "jsonl", "txt.gz"],
}
WITH_WORKERS = ("lines", "mixed")  # every day; in a soak all are built so
SIZES = [("20k", "2"), ("150k", "1"), ("3M", "2")]  # of a batch, and workers
Cursor = tuple[int, int]  # file and position
SAMPLE_BYTES = 65_536  # looked at in the beginning of a file, whatever is read of it
RANGE_FAULTS: list[Fault] = [
    Reset(),
    Reset(0.5),
    CutBody(),
    Stall(0.5, seconds=2.0),
    ExpiredMidBody(),
    ExpiredMidBody(0.0),
    IgnoreRange(),
    *(Status(code) for code in (403, 500, 503)),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("forms")
    return text_repository({name: write_files(folder, endings) for name, endings in LARGE.items()})


@pytest.fixture
def hub(repository: Repository) -> Iterator[StandInHub]:
    with StandInHub([repository], cdn=True) as hub:
        yield hub


@pytest.mark.full
@pytest.mark.promise("workers, batches, engine and executor change no byte")
def test_the_same_documents_in_every_form(hub: StandInHub, home: Path, tmp_path: Path, tries: Tries) -> None:
    """Whatever the form, the batch and the number of workers: the reference's shards, and nothing is left of what was
    downloaded."""
    for number in tries(1, len(SIZES)):
        hub.clear_requests()
        for place, name in enumerate(LARGE):
            batch_bytes, workers = SIZES[(number + place) % len(SIZES)]
            words = ["--name", name, "--batch-bytes", batch_bytes, "--workers", workers]
            run = runs.run_command if name in WITH_WORKERS else forked.run_command
            out = tmp_path / f"{number}-{name}"
            done = run("build", *DATASET, "--out", out, *words, **environment(hub, home))
            assert done.returncode == 0, (name, done.stderr)
            assert runs.shards_in(tmp_path / f"{number}-{name}") == expected_shards(), name
            assert left_in_downloads(tmp_path / f"{number}-{name}") == []
        check_requests(hub)


def check_requests(hub: StandInHub) -> None:
    """JSON lines and text came by ranges, a small file with one request, any other file once."""
    files = hub.repositories[REPO].commits[hub.repositories[REPO].head]
    for path, file in files.items():
        ranges = sorted(set(fetched_ranges(hub, path)))
        if path in ("lines/000.jsonl", "text/000.txt"):
            assert max(last - first for first, last in ranges) < file.size - 1 or len(ranges) > 1
        elif path.startswith("small/"):
            assert fetched_ranges(hub, path) == [(0, file.size - 1)]
        elif path.endswith((".json", ".json.gz")):  # the beginning is looked at, for an array
            assert sum(last + 1 - first for first, last in ranges if first) < file.size
        elif path != "README.md":
            assert sum(last + 1 - first for first, last in fetched_ranges(hub, path)) == file.size, path


@pytest.mark.full
def test_all_of_it_downloaded(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """With `--download` a file that could be read by ranges comes to the disk once, and is read there."""
    done = build(hub, home, tmp_path / "out", "lines", "--download", "--keep-downloads")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected_shards()
    kept = [path.read_bytes() for path in left_in_downloads(tmp_path / "out")]
    assert kept == [hub.repositories[REPO].commits[hub.repositories[REPO].head]["lines/000.jsonl"].content]
    assert sum(last + 1 - first for first, last in fetched_ranges(hub, "lines/")) == len(kept[0])


@dataclass
class StallFrom(FaultPlan):
    """From a byte of a file on nothing is sent until the stalls are released."""

    name: str
    byte: int
    active: bool = True

    def next_fault(self, request: RequestRecord) -> Fault | None:
        start = int((request.range or "bytes=0-").removeprefix("bytes=").split("-")[0])
        stalls = self.active and f"/{self.name}" in request.path and start >= self.byte
        return super().next_fault(request) if stalls and request.kind == "cdn" else None

    def choose(self, number: int) -> Fault | None:
        return Stall(0.1)


@contextlib.contextmanager
def started(hub: StandInHub, home: Path, out: Path, config: str) -> Iterator[subprocess.Popen[bytes]]:
    """A build in a process group of its own; whatever is left of it in the end is killed."""
    words = runs.command("build", *DATASET, "--name", config, "--out", out)
    flags = ["--batch-bytes", "30k", "--workers", "2"]
    variables = {**os.environ, **environment(hub, home), "PYTHONFAULTHANDLER": "1"}
    with (
        (out.parent / f"{out.name}.txt").open("wb") as file,
        subprocess.Popen([*words, *flags], env=variables, stdout=file, stderr=file, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)


def interrupt_at(
    stall: StallFrom, reached: Cursor, hub: StandInHub, home: Path, out: Path, how: signal.Signals
) -> Cursor:
    """Run a build of the file's config until it waits there, and its finished shards have reached a place; end it, and
    return where they end."""
    hub.faults = [stall]
    screen = out.parent / f"{out.name}.txt"
    with started(hub, home, out, stall.name.partition("/")[0]) as process:
        while not (stall.injected and last_end(out) >= reached):
            assert process.poll() is None, screen.read_text()
            time.sleep(0.05)
        os.killpg(process.pid, how) if how == signal.SIGKILL else process.send_signal(how)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it prints where all its threads are
            process.wait()
            raise AssertionError(screen.read_text()) from None
    assert "Traceback" not in screen.read_text()
    hub.faults = []
    hub.release_stalls()
    hub.clear_requests()
    return last_end(out)


def last_end(out: Path) -> Cursor:
    """Where the last finished shard ends."""
    try:
        shards = json.loads((out / "manifest.json").read_text())["shards"]
    except FileNotFoundError:
        shards = []
    return (shards[-1]["end"][0]["file"], shards[-1]["end"][0]["position"]) if shards else (0, 0)


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard", "Ctrl-C and SIGTERM stop cleanly")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_resume_in_the_middle_of_a_large_file(
    hub: StandInHub, home: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """It begins at the byte it had reached; before that only the file's beginning is looked at."""
    out, stall = tmp_path / "out", StallFrom("lines/000.jsonl", 1_200_000)
    _, position = interrupt_at(stall, (0, 300_000), hub, home, out, how)
    done = build(hub, home, out, "lines")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected_shards()
    ranges = fetched_ranges(hub, "lines/000.jsonl")
    assert len(ranges) > 1
    assert not [one for one in ranges if one[0] < position - 1 and one != (0, SAMPLE_BYTES - 1)]


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard", "resumes can be chained")
def test_a_resume_fetches_no_finished_file_again(hub: StandInHub, home: Path, tmp_path: Path, tries: Tries) -> None:
    """After kill -9 in compressed files, and in files of several kinds: only those are asked for of which something is
    not in a finished shard."""
    stalls = [(StallFrom("mixed/006.txt.gz", 0), 2), (StallFrom("zst/004.jsonl.zst", 0), 1)]
    for number in tries(1, len(stalls)):
        (stall, reached), out = stalls[number], tmp_path / str(number)
        config = stall.name.partition("/")[0]
        finished, _ = interrupt_at(stall, (reached, 0), hub, home, out, signal.SIGKILL)
        done = build(hub, home, out, config)
        assert done.returncode == 0, done.stderr
        assert runs.shards_in(out) == expected_shards()
        for place in range(finished):
            assert fetched_ranges(hub, f"{config}/{place:03d}.") == []
        assert fetched_ranges(hub, stall.name)
        assert left_in_downloads(out) == []


@pytest.mark.full
@pytest.mark.promise("network faults are survived")
def test_faults_while_ranges_are_read(repository: Repository, home: Path, tmp_path: Path, tries: Tries) -> None:
    """Of JSON lines and text, at random: the same bytes, and nobody hears of them."""
    for number in tries(1, 6):
        name = ("lines", "text")[number % 2]
        plan = RandomFaults(RANGE_FAULTS, seed=60 + number, probability=0.3, budget=20, on="cdn")
        with StandInHub([repository], [plan], cdn=True) as hub:
            words = ["--batch-bytes", "20k", "--max-outage", "1min"]
            variables = {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}
            done = build_with_workers(hub, home, tmp_path / str(number), name, *words, **variables)
        assert done.returncode == 0, done.stderr
        assert plan.injected >= 15
        assert "Traceback" not in done.stderr
        assert runs.shards_in(tmp_path / str(number)) == expected_shards()


def test_nothing_is_left_of_what_was_fetched_too_far(repository: Repository, home: Path, tmp_path: Path) -> None:
    """A run that ends with --max-tokens deletes the files it has fetched ahead, whole or not."""
    with StandInHub([repository], cdn=True, line_bytes_per_second=150e3) as hub:
        done = build(hub, home, tmp_path / "out", "zst", "--max-tokens", "40k")
    assert done.returncode == 0, done.stderr
    name = min(expected_shards(), key=lambda shard: shard[-10:])
    assert runs.shards_in(tmp_path / "out") == {name: expected_shards()[name]}
    assert left_in_downloads(tmp_path / "out") == []
