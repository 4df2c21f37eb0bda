"""Two writers and one bucket: one of them wins, and the other says so."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fineweb_shards.errors import LockedError, OutputError
from fineweb_shards.output import bucket_work_folder
from fineweb_shards.output.bucket_store import BucketStore
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_client import ConflictError
from fineweb_shards.system.background import in_background
from tests.support.bucket_server import Door, Fault
from tests.support.bucket_view import BucketView
from tests.support.doubles import Listener
from tests.support.promises import Tries

OpenStore = Callable[..., BucketStore]


@pytest.fixture
def open_store(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """A store of the same folder of the bucket, by another scratch folder for each machine."""
    monkeypatch.setattr(bucket_work_folder, "BEAT_SECONDS", 0.1)
    # On a busy machine a beat may come late.
    monkeypatch.setattr(bucket_work_folder, "STALE_SECONDS", 10_000.0)
    monkeypatch.setattr(bucket_work_folder, "_LOOK_SECONDS", 0.05)

    def call(machine: str, max_outage_seconds: float = 20) -> BucketStore:
        bucket = Bucket(f"{bucket_url}/folder", max_outage_seconds, refusal=OutputError)
        return BucketStore(bucket, tmp_path / machine)

    return call


@pytest.fixture
def view(bucket_environment: str, bucket_url: str) -> BucketView:
    return BucketView(bucket_environment, f"{bucket_url}/folder")


@contextlib.contextmanager
def asleep(store: BucketStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store that is locked by a run that does nothing any more, and has not ended."""
    monkeypatch.setattr(bucket_work_folder, "BEAT_SECONDS", 10_000.0)
    monkeypatch.setattr(bucket_work_folder, "STALE_SECONDS", 0.2)
    with store.lock(Listener()):
        monkeypatch.setattr(bucket_work_folder, "BEAT_SECONDS", 0.1)
        yield


class Race:
    """Starts at the same moment, each on a machine of its own. Whoever wins waits for the others."""

    def __init__(self, starts: list[BucketStore]) -> None:
        self.won: list[str] = []
        self.refusals: list[LockedError] = []
        self._starts = starts
        self._begin, self._end = threading.Barrier(len(starts)), threading.Event()

    def run(self) -> None:
        starts = [in_background(partial(self._start, store)) for store in self._starts]
        while len(self.won) + len(self.refusals) < len(starts):
            assert not [one for one in starts if one.done() and one.exception()]
            time.sleep(0.01)
        self._end.set()
        for start in starts:
            start.result()

    def _start(self, store: BucketStore) -> None:
        self._begin.wait()
        try:
            with store.lock(Listener()):
                self.won.append(store.run_id)
                self._end.wait()
        except LockedError as error:
            self.refusals.append(error)


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_of_racing_starts_one_wins(door: Door, open_store: OpenStore, tries: Tries) -> None:
    """All others are told that another run is writing here. S3 looks and writes in one step, and moto in two: so the
    door lets requests in one by one."""
    door.one_by_one = True
    for attempt in tries(2, 20):
        race = Race([open_store(f"{attempt}-{number}") for number in range(4)])
        race.run()
        assert len(race.won) == 1
        assert {error.exit_code for error in race.refusals} == {6}
        assert all("another run is writing here (process " in error.message for error in race.refusals)


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_a_writer_that_has_slept_is_refused(
    open_store: OpenStore, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run takes its lock over after a while; then its next manifest is refused, even if the other one has saved
    the same."""
    sleeper, other = open_store("a"), open_store("b")
    with asleep(sleeper, monkeypatch):
        sleeper.save_manifest(b"first of " + sleeper.run_id.encode())
        with other.lock(Listener()):
            assert other.run_id != sleeper.run_id
            other.save_manifest(b"first of " + other.run_id.encode())
            with pytest.raises(LockedError) as caught:
                sleeper.save_manifest(b"second")
            assert caught.value.exit_code == 6
            assert "somebody else has written it meanwhile" in caught.value.message
            other.save_manifest(b"second of the other")
    assert view.read("manifest.json") == b"second of the other"
    assert ".fineweb-shards/lock.json" not in view.names()


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_a_run_that_has_slept_writes_nothing_more(
    open_store: OpenStore, view: BucketView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the lock before it uploads, and leaves its successor's copies of small files alone."""
    sleeper, other = open_store("a"), open_store("b")
    with asleep(sleeper, monkeypatch):
        (tmp_path / "a" / ".fineweb-shards" / "notes.txt").write_text("the sleeper's")
        with other.lock(Listener()):
            (tmp_path / "b" / ".fineweb-shards" / "notes.txt").write_text("the other's")
            other.check_lock()
            with pytest.raises(LockedError, match="another run has taken over"):
                sleeper.check_lock()
    assert view.read(".fineweb-shards/notes.txt") == b"the other's"


def test_the_sleeper_does_not_remove_the_lock_of_its_successor(
    open_store: OpenStore, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while the other is at work."""
    other = open_store("b")
    with contextlib.ExitStack() as stack:
        with asleep(open_store("a"), monkeypatch):
            stack.enter_context(other.lock(Listener()))
        assert json.loads(view.read(".fineweb-shards/lock.json"))["run"] == other.run_id


def test_a_dead_run_of_the_same_scratch_folder_is_followed_at_once(
    open_store: OpenStore, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is still there, and nobody waits for it to become old."""
    with open_store("a").lock(Listener()):
        content = view.read(".fineweb-shards/lock.json")
    view.write(".fineweb-shards/lock.json", content)
    listener = Listener()
    with open_store("a").lock(listener):
        assert not [reason for cause, reason in listener.waits if reason]


def test_a_scratch_folder_of_the_same_name_elsewhere_is_another_one(
    open_store: OpenStore, tmp_path: Path, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines may have the same name, and the same folders."""
    with open_store("a").lock(Listener()):
        content = view.read(".fineweb-shards/lock.json")
    view.write(".fineweb-shards/lock.json", content)
    (tmp_path / "a").rename(tmp_path / "a on one machine")
    monkeypatch.setattr(bucket_work_folder, "STALE_SECONDS", 0.2)
    listener = Listener()
    with open_store("a").lock(listener):
        assert "is still running" in str(listener.waits[0][1])


def test_a_lost_answer_to_a_beat_is_no_other_run(
    open_store: OpenStore, view: BucketView, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is renewed on, although the last beat was written and not answered for too long."""
    monkeypatch.setattr(bucket_work_folder, "_LONGEST_BEAT_OUTAGE_SECONDS", 0.0)
    listener = Listener()
    with open_store("a").lock(listener):
        door.faults.append(Fault("PUT", "lock.json", after=True, times=3))
        beats = 0
        while beats < 6:
            beats = json.loads(view.read(".fineweb-shards/lock.json"))["beats"]
    assert not [text for text in listener.texts("lock") if "taken over" in text]
    assert ".fineweb-shards/lock.json" not in view.names()


def test_without_conditions_racing_starts_look_again(open_store: OpenStore, door: Door) -> None:
    """A store that ignores conditions would let both write; the one that was overwritten gives way."""
    door.ignored_headers = ("if-none-match", "if-match")
    winner = open_store("a")
    notes = Listener()
    with winner.lock(notes):
        assert "does not check conditions" in notes.texts("note")[0]
        with pytest.raises(LockedError), open_store("b").lock(Listener()):
            pytest.fail("both have the lock")


def test_a_lock_that_is_never_given_is_asked_for_a_few_times(
    open_store: OpenStore, door: Door, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may say again and again that somebody else has written it: that is told, and ends."""
    with open_store("a").lock(Listener()):
        content = view.read(bucket_work_folder.OBJECT_NAME)
    view.write(bucket_work_folder.OBJECT_NAME, content)
    store, listener = open_store("a"), Listener()
    write = Bucket.write

    def refuse(bucket: Bucket, name: str, data: bytes, *, replaces: object) -> object:
        if name == bucket_work_folder.OBJECT_NAME:
            raise ConflictError("somebody else has written it")
        return write(bucket, name, data, replaces=replaces)  # type: ignore[arg-type]

    monkeypatch.setattr(Bucket, "write", refuse)
    with pytest.raises(LockedError, match="could not be taken in 10 tries") as caught, store.lock(listener):
        pytest.fail("it has the lock")
    assert bucket_work_folder.OBJECT_NAME in caught.value.hint
    waits = [reason for cause, reason in listener.waits if cause == "lock"]
    assert waits[0] == "another run took the lock first; try 2 of 10"
    assert waits[-1] is None
    assert sum("GET" in one and "lock.json" in one for one in door.requests) < 15


def test_a_store_without_ranges_is_refused_before_anything_is_made(
    open_store: OpenStore, door: Door, view: BucketView
) -> None:
    """`rclone serve s3` answers them with status 200: its client can't use that, and says so at once."""
    door.ranges_status = 200
    with pytest.raises(OutputError, match="status 200") as caught, open_store("a").lock(Listener()):
        pytest.fail("shards would be uploaded, and could not be read back")
    assert "rclone serve s3" in caught.value.hint
    assert view.names() == []


def test_a_beat_that_fails_is_told_and_the_next_one_comes(
    open_store: OpenStore, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the failure is: without beats another run would take the lock over."""
    failed, listener = threading.Event(), Listener()
    write = Bucket.write

    def fail_once(bucket: Bucket, name: str, data: bytes, *, replaces: object) -> object:
        if name == bucket_work_folder.OBJECT_NAME and json.loads(data)["beats"] == 2:
            failed.set()
            raise ZeroDivisionError("beat")
        return write(bucket, name, data, replaces=replaces)  # type: ignore[arg-type]

    monkeypatch.setattr(Bucket, "write", fail_once)
    with open_store("a").lock(listener):
        assert failed.wait(60)
        while json.loads(view.read(bucket_work_folder.OBJECT_NAME))["beats"] < 3:
            threading.Event().wait(0.01)
    assert any("ZeroDivisionError: beat" in text for text in listener.texts("lock"))
