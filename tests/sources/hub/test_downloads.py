"""`--download` through everything that can happen to a file on its way: as sturdy as streaming."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import night
from tests.support import reference, runs
from tests.support.fourteen_files import (
    DATASET,
    FILES,
    FLAGS,
    REPO,
    SHARD_TOKENS,
    build,
    documents_of,
    environment,
    expected_shards,
    sample_repository,
)
from tests.support.promises import Tries
from tests.support.standin_faults import (
    CutBody,
    Fault,
    FaultPlan,
    FirstOfEachPath,
    Reset,
    ScriptedFaults,
    Stall,
    WrongBytes,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

LARGE_NOISE_BYTES, HUGE_NOISE_BYTES = 150_000, 800_000  # a document
DOCUMENTS = documents_of(0)
LARGE_EXPECTED = reference.shard_files(reference.stream(DOCUMENTS), SHARD_TOKENS)


def large_parquet(noise_bytes: int) -> bytes:
    """A file that takes a while to fetch, with few tokens to encode."""
    noise = random.Random(4)
    table = pa.table({"text": DOCUMENTS, "noise": [noise.randbytes(noise_bytes) for _ in DOCUMENTS]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=4, use_dictionary=False)
    return buffer.getvalue()


LARGE = large_parquet(LARGE_NOISE_BYTES)


@pytest.fixture
def large() -> Repository:
    return Repository(REPO, {"sample/10BT/000_00000.parquet": LARGE})


def downloads_of(out: Path) -> Path:
    return out / ".fineweb-shards" / "downloads"


@contextlib.contextmanager
def started(hub: StandInHub, home: Path, out: Path, screen: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A build in a process group of its own; whatever is left of it in the end is killed."""
    words = runs.command("build", *DATASET, "--out", out, *FLAGS, "--download")
    variables = {**os.environ, **environment(hub, home)}
    with (
        screen.open("wb") as file,
        subprocess.Popen(words, env=variables, stdout=file, stderr=file, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)


def sizes_in(folder: Path) -> list[int]:
    """The bytes of every file with more in it than a note about a file."""
    sizes = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            sizes += [path.stat().st_size] if path.is_file() else []
    return [size for size in sizes if size > 1000]


@pytest.mark.full
def test_a_short_body_and_a_reset(home: Path, tmp_path: Path) -> None:
    """The rest is fetched, and nothing is left behind in the end."""
    plan = ScriptedFaults([CutBody(), Reset(0.5), CutBody(0.0), Reset()], on="cdn")
    with StandInHub([sample_repository()], [plan], cdn=True) as hub:
        done = build(hub, home, tmp_path / "out", "--download")
    assert done.returncode == 0, done.stderr
    assert plan.injected == 4
    assert "Traceback" not in done.stderr
    assert runs.shards_in(tmp_path / "out") == expected_shards()
    assert not [path for path in downloads_of(tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.full
def test_wrong_content_of_the_right_size(large: Repository, home: Path, tmp_path: Path) -> None:
    """One wrong bit is found by the hub's SHA-256, and the file is fetched again."""
    plan = FirstOfEachPath(WrongBytes(), on="cdn")
    with StandInHub([large], [plan], cdn=True) as hub:
        done = build(hub, home, tmp_path / "out", "--download", "--keep-downloads")
        assert done.returncode == 0, done.stderr
        assert plan.injected == 1
        assert len(LARGE) < hub.content_bytes
    assert runs.shards_in(tmp_path / "out") == LARGE_EXPECTED
    assert [path.read_bytes() for path in downloads_of(tmp_path / "out").rglob("*.parquet")] == [LARGE]


@dataclass
class StallAfter(FaultPlan):
    """Once so many bytes are on the disk, no request is answered to its end any more."""

    folder: Path
    size_bytes: int

    def choose(self, number: int) -> Fault | None:
        return Stall(0.1) if sum(sizes_in(self.folder)) >= self.size_bytes else None


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_killed_download_goes_on(home: Path, tmp_path: Path, tries: Tries) -> None:
    """After kill -9 in the middle the next run fetches the rest: less than 1.2 x the file in all."""
    huge = large_parquet(HUGE_NOISE_BYTES)
    for number in tries(1, 5):
        out, screen = tmp_path / str(number), tmp_path / f"{number}.txt"
        repository = Repository(REPO, {"sample/10BT/000_00000.parquet": huge})
        half = StallAfter(downloads_of(out), len(huge) // 2, on="cdn")
        with StandInHub([repository], [half], cdn=True) as hub:
            with started(hub, home, out, screen) as process:
                while not half.injected:
                    assert process.poll() is None, screen.read_text()
                    time.sleep(0.02)
            assert not runs.shards_in(out)
            before = hub.content_bytes
            hub.faults.clear()
            hub.clear_requests()  # what was stalled is sent now, to nobody
            hub.release_stalls()
            done = build(hub, home, out, "--download")
            assert done.returncode == 0, done.stderr
            assert before + hub.content_bytes < 1.2 * len(huge)
        assert runs.shards_in(out) == LARGE_EXPECTED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with night.small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no small file system can be mounted here")
        yield disk


@pytest.mark.full
@pytest.mark.promise("a full disk loses nothing")
def test_a_full_disk_is_waited_for(large: Repository, home: Path, tmp_path: Path, small_disk: Path) -> None:
    """It fills up in the middle of a download; once there is space, the run goes on by itself."""
    screen, ballast = tmp_path / "screen.txt", small_disk / "ballast"
    with (
        StandInHub([large], cdn=True, line_bytes_per_second=1e6) as hub,
        started(hub, home, small_disk / "out", screen) as process,
    ):
        while hub.content_bytes < 10_000:
            assert process.poll() is None, screen.read_text()
            time.sleep(0.02)
        fill(ballast)
        while "waiting for the disk since" not in screen.read_text():
            assert process.poll() is None, screen.read_text()
            time.sleep(0.05)
        ballast.unlink()
        assert process.wait(timeout=600) == 0, screen.read_text()
    assert "Traceback" not in screen.read_text()
    assert runs.shards_in(small_disk / "out") == LARGE_EXPECTED


def fill(path: Path) -> None:
    """Write until there is no space left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65536))


@pytest.mark.full
def test_few_files_are_on_the_disk_at_once(home: Path, tmp_path: Path) -> None:
    """Those that are being read or in an unfinished shard, and two more, never all; none at the end."""
    out, screen, most = tmp_path / "out", tmp_path / "screen.txt", 0
    with (
        StandInHub([sample_repository()], cdn=True, latency_seconds=0.05) as hub,
        started(hub, home, out, screen) as process,
    ):
        while process.poll() is None:
            most = max(most, len(sizes_in(downloads_of(out))))
            time.sleep(0.005)
        assert process.returncode == 0, screen.read_text()
    assert 1 <= most < FILES
    assert not [path for path in downloads_of(out).rglob("*") if path.is_file()]
    assert runs.shards_in(out) == expected_shards()
