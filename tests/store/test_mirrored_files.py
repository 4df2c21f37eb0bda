"""The work folder's small files and their copies in a bucket: what this machine wrote last is not lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fineweb_shards.errors import NetworkError
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.store.bucket_work_folder import MirroredFiles
from tests.support.bucket_server import Door, Fault

LOG = ".fineweb-shards/log.txt"


@pytest.fixture
def bucket(bucket_url: str) -> Bucket:
    return Bucket(f"{bucket_url}/folder", 20)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return make_work_folder(tmp_path)


def make_work_folder(parent: Path) -> Path:
    (parent / ".fineweb-shards").mkdir(parents=True)
    return parent / ".fineweb-shards"


def append(work: Path, line: str, *, ahead_seconds: float = 0.0) -> None:
    """Write a line by a clock that is ahead of the store's, or behind."""
    with (work / "log.txt").open("a") as file:
        file.write(line)
    moment = time.time() + ahead_seconds
    os.utime(work / "log.txt", (moment, moment))


def test_what_is_written_during_an_upload_stays(bucket: Bucket, door: Door, work: Path) -> None:
    """The copy is older, though it was finished later, and whatever this machine's clock says."""
    append(work, "one\n", ahead_seconds=-3600)
    door.on_request = lambda method, path: (
        append(work, "two\n", ahead_seconds=-3600) if (method, path[-7:]) == ("PUT", "log.txt") else None
    )
    MirroredFiles(bucket, work).push(bucket)
    MirroredFiles(bucket, work).pull()  # after a crash
    assert bucket.read(LOG)[0] == b"one\n"  # type: ignore[index]
    assert (work / "log.txt").read_text() == "one\ntwo\n"


def test_a_copy_whose_answer_was_lost_is_known(bucket: Bucket, door: Door, work: Path) -> None:
    """The store has it, then nobody answers any more, and what was written meanwhile stays."""
    mirror, hasty = MirroredFiles(bucket, work), bucket.hurried(0.0, 20.0)
    append(work, "one\n", ahead_seconds=-3600)
    mirror.push(bucket)
    door.faults = [Fault("PUT", "log.txt", after=True, resets=True), Fault("PUT", status=503, times=1000)]
    for line in ("two\n", "three\n", "four\n"):
        append(work, line, ahead_seconds=-3600)
        with pytest.raises(NetworkError):
            mirror.push(hasty)
    assert bucket.read(LOG)[0] == b"one\ntwo\n"  # type: ignore[index]
    MirroredFiles(bucket, work).pull()
    assert (work / "log.txt").read_text() == "one\ntwo\nthree\nfour\n"


def test_what_another_machine_has_written_is_fetched(bucket: Bucket, work: Path, tmp_path: Path) -> None:
    """Once, whatever this machine's clock says; and also what is missing here, though it was ours."""
    append(work, "one\n", ahead_seconds=3600)
    (work / "report.html").write_text("a page")
    MirroredFiles(bucket, work).push(bucket)
    elsewhere = make_work_folder(tmp_path / "elsewhere")
    mirror = MirroredFiles(bucket, elsewhere)
    mirror.pull()
    assert (elsewhere / "log.txt").read_text() == "one\n"
    assert (elsewhere / "report.html").read_text() == "a page"
    append(elsewhere, "two\n", ahead_seconds=-3600)
    mirror.push(bucket)
    (work / "report.html").unlink()
    mirror = MirroredFiles(bucket, work)
    mirror.pull()
    assert (work / "log.txt").read_text() == "one\ntwo\n"
    assert (work / "report.html").read_text() == "a page"
    append(work, "three\n")
    mirror.pull()
    assert (work / "log.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"log.txt": 3}', b'{"log.txt": {"etag": 3}}', b"\xff"])
def test_damaged_notes_are_none(bucket: Bucket, work: Path, content: bytes) -> None:
    """Everything is fetched then, and noted again."""
    append(work, "one\n")
    MirroredFiles(bucket, work).push(bucket)
    (work / "copies.json").write_bytes(content)
    append(work, "two\n")
    MirroredFiles(bucket, work).pull()
    assert (work / "log.txt").read_text() == "one\n"
    append(work, "three\n")
    MirroredFiles(bucket, work).pull()
    assert (work / "log.txt").read_text() == "one\nthree\n"
    assert [info.name for info in bucket.list()] == [LOG]
