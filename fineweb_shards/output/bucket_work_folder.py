"""The work folder of a bucket: the lock of a run, and copies of this machine's small files.

The lock is an object that its run replaces every few seconds by compare-and-set; docs/architecture.md says how another
run finds out whether it is alive.

Every beat of the lock copies the files that have changed: heartbeat, history, quarantine, tokenizer. None of them is a
checkpoint. They serve `status` and `report` elsewhere, and let a run be finished on another machine. A run fetches all
of them when it starts, unless it follows a dead one of the same scratch folder, which may have written more than it
copied; the abandoned lock records that.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from fineweb_shards.errors import LockedError
from fineweb_shards.events import Event, Observer
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_client import ConflictError
from fineweb_shards.storage.bucket_requests import PROBE_PREFIX, Version
from fineweb_shards.storage.place import plain_etag
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import LOCK_NAME, is_lock_name, output_errors, write_quickly
from fineweb_shards.system.json_values import get, parse_object
from fineweb_shards.system.own_files import WORK_FOLDER, is_plain_file, read_file
from fineweb_shards.units import show_seconds

OBJECT_NAME = f"{WORK_FOLDER}/lock.json"
BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0  # a run without a beat for this long is dead
_LOOK_SECONDS = 2.0
_MOST_TRIES = 10  # to take the lock
# A beat does not wait for the end of an outage: it would be late, and the next one comes soon.
_LONGEST_BEAT_OUTAGE_SECONDS = 5.0
_LONGEST_BEAT_ANSWER_SECONDS = 10.0
_LONGEST_END_SECONDS = 60.0
_LONGEST_END_AFTER_ERROR_SECONDS = 4.0  # Ctrl-C must not wait long for a lost network
_SCRATCH_ID_NAME = f"{LOCK_NAME}.id"
# Only for users of this machine. Earlier versions copied them.
_NOT_COPIED = ("log.txt", "log.old.txt", "report.html")
_LARGEST_BYTES = 64 * 2**20  # of a copy; a tokenizer's file has at most 20 MB


class BucketLock:
    """The lock of one run, a context manager. Every beat, and the end, calls `on_beat`."""

    def __init__(self, bucket: Bucket, scratch: Path, on_beat: Callable[[Bucket], None], observer: Observer) -> None:
        self.run_id = secrets.token_hex(8)
        self._bucket = bucket
        self._hasty_bucket = bucket.hurried(_LONGEST_BEAT_OUTAGE_SECONDS, _LONGEST_BEAT_ANSWER_SECONDS)
        self._on_beat = on_beat
        self._observer = observer
        who = {"run": self.run_id, "machine": socket.gethostname(), "process": os.getpid()}
        self._holder = {**who, "scratch": _read_scratch_id(scratch)}
        # Whether this scratch folder has the newest files, written by this run or a dead one of the same folder.
        self.has_newest_files = False
        self._beats = 0
        self._version: Version | None = None
        self._lost = False  # to another run
        self._last_beat = time.time()
        self._turn = threading.Lock()  # for beats
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> Self:
        self._version = self._take()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        ended = in_background(self._end)
        with contextlib.suppress(TimeoutError):
            ended.result(_LONGEST_END_SECONDS if kind is None else _LONGEST_END_AFTER_ERROR_SECONDS)

    def _take(self) -> Version:
        """Take the lock; LockedError if another run has it. The loser of a race sees the winner by the second try; more
        tries are for consecutive races. They are limited because a faulty store might refuse forever."""
        try:
            for number in range(1, _MOST_TRIES + 1):
                if number > 1:
                    self._observer.set_wait("lock", f"another run took the lock first; try {number} of {_MOST_TRIES}")
                    time.sleep(_LOOK_SECONDS)
                found = self._bucket.read(OBJECT_NAME)
                if found is not None:
                    # A run with the same scratch folder is dead, because this run has locked that folder.
                    is_ours = _read_field(found[0], "scratch") == self._holder["scratch"]
                    self.has_newest_files = is_ours and _read_field(found[0], "newest") is True
                    found = found if is_ours else self._wait_for_sign(*found)
                try:
                    version: Version | None = self._write(self._bucket, found[1] if found else None)
                except ConflictError:
                    continue
                if not self._bucket.has_conditional_writes:
                    # Another run may have read before this one wrote, and written after it.
                    time.sleep(_LOOK_SECONDS)
                    version = self._find_own_version()
                if version is not None:
                    return version
        finally:
            self._observer.set_wait("lock", None)
        address = self._bucket.address
        raise LockedError(
            f"{address}: the lock could not be taken in {_MOST_TRIES} tries: each time another run had written it.",
            f"Wait for other runs. If there are none, delete {address.child(OBJECT_NAME)} and run the command again.",
        )

    def _wait_for_sign(self, content: bytes, version: Version) -> tuple[bytes, Version] | None:
        """Watch a lock until its run must be dead, then return it; None if it was removed meanwhile. LockedError if it
        was renewed."""
        end = time.monotonic() + STALE_SECONDS
        self._observer.set_wait("lock", f"checking whether {_describe(content)} is still running")
        try:
            while time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
                found = self._bucket.read(OBJECT_NAME)
                if found is None:
                    return None
                if found[1] != version:
                    raise LockedError(f"{self._bucket.address}: another run is writing here ({_describe(found[0])}).")
        finally:
            self._observer.set_wait("lock", None)
        return content, version

    def observe(self, observer: Observer) -> None:
        self._observer = observer
        self._bucket = self._bucket.reopened(observer)

    def check(self) -> None:
        """Raise LockedError if another run has taken over. If the last beat is old because this machine was suspended,
        look now: the timer of the beats was suspended as well."""
        if not self._lost and time.time() - self._last_beat > STALE_SECONDS:
            self._renew(self._bucket)
        if self._lost:
            raise LockedError(
                f"{self._bucket.address}: another run has taken over, because this one gave no sign of life for "
                f"{show_seconds(STALE_SECONDS)}."
            )

    def _find_own_version(self) -> Version | None:
        found = self._bucket.read(OBJECT_NAME)
        return found[1] if found is not None and _read_field(found[0], "run") == self.run_id else None

    def _write(self, bucket: Bucket, replaces: Version | None) -> Version:
        self._beats += 1
        now = {"beats": self._beats, "written": time.time(), "newest": self.has_newest_files}
        return bucket.write(OBJECT_NAME, json.dumps({**self._holder, **now}).encode(), replaces=replaces)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with self._failures_reported():
                self._renew(self._hasty_bucket)
                if self._lost:
                    text = f"{self._bucket.address}: another run has taken over; this one ends"
                    self._observer.tell(Event("lock", text))
                    return
                self._on_beat(self._hasty_bucket)

    def _renew(self, bucket: Bucket) -> None:
        """Replace the lock, unless another run has it by now."""
        with self._turn:
            try:
                self._version = self._write(bucket, self._version)
            except ConflictError:  # perhaps our own beat was written, but the response was lost
                self._version = self._find_own_version()
            self._lost = self._version is None
            self._last_beat = time.time()

    def _end(self) -> None:
        """Copy the small files for the last time and remove the lock. If copying fails the lock stays, which records
        that this machine has the newest files."""
        self._thread.join()
        with self._failures_reported():
            if not self._lost:
                self._on_beat(self._hasty_bucket)
                if self._find_own_version() is not None:
                    self._hasty_bucket.delete([OBJECT_NAME])

    @contextlib.contextmanager
    def _failures_reported(self) -> Iterator[None]:
        """Report failures, even bugs, instead of raising: without the next beat another run would take over."""
        try:
            yield
        except Exception as error:
            text = f"{self._bucket.address}: {type(error).__name__}: {error}"
            self._observer.tell(Event("lock", text, loud=False))


def _read_scratch_id(scratch: Path) -> str:
    """Return the random number, kept in the scratch folder, that identifies it even if machine and path have the same
    names elsewhere. The caller must hold the folder's lock."""
    path = scratch / WORK_FOLDER / _SCRATCH_ID_NAME
    with output_errors(path):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_file(path).decode("ascii")
        number = secrets.token_hex(16)
        write_quickly(path, number.encode())
    return number


def _read_field(content: bytes, name: str) -> object:
    """Return a field of a lock's content; None if it is damaged."""
    try:
        return parse_object(content).get(name)
    except ValueError:
        return None


def is_bucket_locked(bucket: Bucket) -> bool:
    """Return whether the lock was renewed recently, by this machine's clock."""
    found = bucket.head(OBJECT_NAME)
    return found is not None and time.time() - found.modified_seconds < STALE_SECONDS


def _describe(content: bytes) -> str:
    try:
        holder = parse_object(content)
        age = show_seconds(max(0.0, time.time() - get(holder, "written", float)))
        return f"process {get(holder, 'process', int)} on {get(holder, 'machine', str)}, last sign {age} ago"
    except ValueError:
        return "an unknown one"


class MirroredFiles:
    """Copies files between the work folder on this machine and the bucket's."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        # Of identical files: their state here, and the ETag there of those that were fetched.
        self._states: dict[str, tuple[int, int]] = {}
        self._etags: dict[str, str] = {}

    def pull(self, *, only_missing: bool = False) -> None:
        """Copy files from the bucket that were not fetched before, or only those that are missing here."""
        for info in self._bucket.list_folder(WORK_FOLDER):
            path = self._folder / info.name.rpartition("/")[2]
            if not _is_mirrored(path.name) or info.size_bytes > _LARGEST_BYTES:
                continue
            is_known = only_missing or (info.etag != "" and info.etag == self._etags.get(path.name))
            if is_known and is_plain_file(path):
                continue
            found = self._bucket.read(info.name, _LARGEST_BYTES)
            if found is not None:
                write_quickly(path, found[0])
                self._states[path.name], self._etags[path.name] = _state_of(path), plain_etag(found[1].etag)

    def push(self, bucket: Bucket) -> None:
        """Copy changed files to the bucket; the caller's `bucket` may have shorter timeouts than ours."""
        for path in sorted(self._folder.iterdir()):
            if not _is_mirrored(path.name) or not is_plain_file(path):
                continue
            state = _state_of(path)
            if self._states.get(path.name) != state and state[1] <= _LARGEST_BYTES:
                bucket.overwrite(f"{WORK_FOLDER}/{path.name}", read_file(path, _LARGEST_BYTES))
                self._states[path.name] = state

    def remove(self) -> None:
        names = {info.name: info.name.rpartition("/")[2] for info in self._bucket.list_folder(WORK_FOLDER)}
        self._bucket.delete([key for key, name in names.items() if _is_mirrored(name) or name in _NOT_COPIED])
        self._states.clear()
        self._etags.clear()


def _is_mirrored(name: str) -> bool:
    is_probe = f"{WORK_FOLDER}/{name}".startswith(PROBE_PREFIX)
    return not (is_probe or is_lock_name(name) or name in _NOT_COPIED or name.endswith(".tmp"))


def _state_of(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size
