"""The work folder's small files and their copies in a bucket: what was written last is not lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_shards.errors import OutputError
from fineweb_shards.output.bucket_store import BucketStore
from fineweb_shards.output.bucket_work_folder import BEAT_SECONDS, OBJECT_NAME, MirroredFiles
from fineweb_shards.storage.bucket import Bucket
from tests.support.bucket_server import Door, Fault
from tests.support.doubles import Listener

NOTES = ".fineweb-shards/notes.txt"


@pytest.fixture
def bucket(bucket_url: str) -> Bucket:
    return Bucket(f"{bucket_url}/folder", 20, refusal=OutputError)


@pytest.fixture
def open_store(bucket: Bucket, tmp_path: Path) -> Callable[[str], BucketStore]:
    """A store of the same folder of the bucket, by another scratch folder for each machine."""
    return lambda machine: BucketStore(bucket, tmp_path / machine)


def append(store: BucketStore, line: str) -> None:
    with (store.folder / NOTES).open("a") as file:
        file.write(line)


def read(store: BucketStore) -> str:
    return (store.folder / NOTES).read_text()


def test_what_another_machine_has_written_is_fetched(open_store: Callable[[str], BucketStore], bucket: Bucket) -> None:
    """At each start, also what is missing here; but not log and report, which are for people at that machine."""
    here, elsewhere = open_store("here"), open_store("elsewhere")
    with here.lock(Listener()):
        append(here, "one\n")
        (here.folder / ".fineweb-shards/report.html").write_text("a page")
    with elsewhere.lock(Listener()):
        assert read(elsewhere) == "one\n"
        append(elsewhere, "two\n")
    with here.lock(Listener()):
        assert read(here) == "one\ntwo\n"
        (here.folder / NOTES).unlink()
    with here.lock(Listener()):
        assert read(here) == "one\ntwo\n"
    assert [info.name for info in bucket.list()] == [NOTES]


def leave_lock(bucket: Bucket, content: bytes) -> None:
    """As a run does that is killed."""
    bucket.overwrite(OBJECT_NAME, content)


def read_lock(bucket: Bucket) -> bytes:
    found = bucket.read(OBJECT_NAME)
    assert found is not None
    return found[0]


def test_what_a_killed_run_had_not_copied_yet_stays(
    open_store: Callable[[str], BucketStore], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is still there, so nobody else can have written anything since."""
    monkeypatch.setattr("fineweb_shards.output.bucket_work_folder.BEAT_SECONDS", 0.05)
    store = open_store("here")
    with store.lock(Listener()):
        append(store, "one\n")
        while b'"newest": true' not in (content := read_lock(bucket)):
            pass
    append(store, "two\n")
    leave_lock(bucket, content)
    with store.lock(Listener()):
        assert read(store) == "one\ntwo\n"
    found = bucket.read(NOTES)
    assert found is not None
    assert found[0] == b"one\ntwo\n"


def test_a_run_that_is_killed_before_it_has_fetched_them_has_older_ones(
    open_store: Callable[[str], BucketStore], bucket: Bucket
) -> None:
    """Its lock says nothing about whose are the newest: the next run fetches them."""
    assert BEAT_SECONDS > 10  # the lock is as it was when it was taken
    here, elsewhere = open_store("here"), open_store("elsewhere")
    with here.lock(Listener()):
        append(here, "one\n")
        content = read_lock(bucket)
    with elsewhere.lock(Listener()):
        append(elsewhere, "two\n")
    leave_lock(bucket, content)
    with here.lock(Listener()):
        assert read(here) == "one\ntwo\n"


def test_what_could_not_be_copied_at_the_end_stays(
    open_store: Callable[[str], BucketStore], bucket: Bucket, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock stays as well, which says so to the next run; others wait until it is old."""
    monkeypatch.setattr("fineweb_shards.output.bucket_work_folder.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("fineweb_shards.output.bucket_work_folder._LONGEST_BEAT_OUTAGE_SECONDS", 0.0)
    store = open_store("here")
    with store.lock(Listener()):
        append(store, "one\n")
        while b'"newest": true' not in read_lock(bucket) or bucket.head(NOTES) is None:
            pass
        door.faults = [Fault("PUT", "notes.txt", status=503, times=1000)]
        append(store, "two\n")
    door.faults = []
    assert bucket.head(OBJECT_NAME) is not None
    with store.lock(Listener()):
        assert read(store) == "one\ntwo\n"


def test_a_reader_fetches_what_has_changed(
    open_store: Callable[[str], BucketStore], bucket: Bucket, door: Door, tmp_path: Path
) -> None:
    """It may ask every few seconds, and asks for what it has not seen."""
    bucket.overwrite(NOTES, b"one\n")
    work = tmp_path / "reader"
    work.mkdir()
    mirror = MirroredFiles(bucket, work)
    mirror.pull()
    door.requests.clear()
    mirror.pull()
    assert not [one for one in door.requests if "notes.txt" in one]
    bucket.overwrite(NOTES, b"two\n")
    mirror.pull()
    assert (work / "notes.txt").read_text() == "two\n"
