"""Lock a folder of a bucket for one run: an object that is replaced every few seconds, by compare-and-set.

An object store can't tell whether a process still lives. So a run that finds a lock waits: if the object is
replaced meanwhile, its run is alive, and this one is refused. If not, for long enough, it is dead, and this
run takes the lock over. A dead run of the same scratch folder is recognized at once, by that folder's lock.

A run that was only asleep, and wakes up after another one has taken over, uploads nothing more, and its next
manifest is refused, because it is not the one that it has read. Only what it was uploading may still arrive.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from fineweb_shards.errors import LockedError
from fineweb_shards.events import Event, Observer
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_errors import ConflictError
from fineweb_shards.storage.bucket_requests import Version
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import LOCK_NAME, WORK_FOLDER, output_error, write_quickly
from fineweb_shards.system.json_values import get, parse_object
from fineweb_shards.system.own_files import read_file
from fineweb_shards.units import show_seconds

OBJECT_NAME = f"{WORK_FOLDER}/lock.json"
BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0  # without a beat: the run is dead
_LOOK_SECONDS = 2.0
_MOST_TRIES = 10  # to take the lock
# An outage is not waited for by a beat, which would come too late, but by the next one.
_LONGEST_BEAT_OUTAGE_SECONDS = 5.0
_LONGEST_BEAT_ANSWER_SECONDS = 10.0
_LONGEST_END_SECONDS = 60.0
_LONGEST_END_AFTER_ERROR_SECONDS = 4.0  # a Ctrl-C is not kept waiting for a network that is gone
_SCRATCH_ID_NAME = f"{LOCK_NAME}.id"


class BucketLock:
    """The lock of one run, a context manager. `on_beat` is called with every beat, and at the end."""

    def __init__(
        self, bucket: Bucket, scratch: Path, on_beat: Callable[[Bucket], None], observer: Observer
    ) -> None:
        self.run_id = secrets.token_hex(8)
        self.follows_dead_run = False  # which has not come to removing its lock
        self._bucket = bucket
        self._hasty_bucket = bucket.hurried(_LONGEST_BEAT_OUTAGE_SECONDS, _LONGEST_BEAT_ANSWER_SECONDS)
        self._on_beat = on_beat
        self._observer = observer
        self._holder = {
            "run": self.run_id,
            "machine": socket.gethostname(),
            "scratch": _read_scratch_id(scratch),
            "process": os.getpid(),
        }
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
        """Take the lock; LockedError if another run has it. Who loses a race sees by the second try who has
        won it; more are for races in a row. A store that answers wrongly would refuse for ever."""
        try:
            for number in range(1, _MOST_TRIES + 1):
                if number > 1:
                    text = f"another run was quicker to take the lock; try {number} of {_MOST_TRIES}"
                    self._observer.set_wait("lock", text)
                    time.sleep(_LOOK_SECONDS)
                version = self._try_to_take()
                if version is not None:
                    return version
        finally:
            self._observer.set_wait("lock", None)
        address = self._bucket.address
        raise LockedError(
            f"{address}: the lock could not be taken in {_MOST_TRIES} tries: each time the store says that "
            "somebody else has written it.",
            f"Wait for other runs. If there are none, delete {address.child(OBJECT_NAME)} and run the same "
            "command again.",
        )

    def _try_to_take(self) -> Version | None:
        """Take the lock if it is free, or that of a dead run; LockedError if its run is alive. None if
        another run was quicker."""
        found = self._bucket.read(OBJECT_NAME)
        if found is not None:
            self.follows_dead_run = True
            if not self._is_of_this_scratch(found[0]):
                found = self._wait_for_sign(*found)
        try:
            version = self._bucket.write(
                OBJECT_NAME, self._content(), replaces=found[1] if found is not None else None
            )
        except ConflictError:
            return None
        if self._bucket.has_conditional_writes:
            return version
        time.sleep(_LOOK_SECONDS)  # another run may have looked before this one wrote, and written after it
        return self._find_own_version()

    def _wait_for_sign(self, content: bytes, version: Version) -> tuple[bytes, Version] | None:
        """Wait until a lock has not been renewed for so long that its run must be dead, and return it; None
        if it was removed meanwhile. LockedError if it was renewed."""
        end = time.monotonic() + STALE_SECONDS
        self._observer.set_wait("lock", f"looking whether {_describe(content)} is still at work")
        try:
            while time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
                found = self._bucket.read(OBJECT_NAME)
                if found is None:
                    return None
                if found[1] != version:
                    raise LockedError(
                        f"{self._bucket.address}: another run is writing here ({_describe(found[0])})."
                    )
        finally:
            self._observer.set_wait("lock", None)
        return content, version

    def observe(self, observer: Observer) -> None:
        """Tell this observer from now on."""
        self._observer = observer
        self._bucket = self._bucket.reopened(observer)

    def check(self) -> None:
        """Raise LockedError if another run has taken over. If no beat has come for long, because this machine
        was asleep, look now: the clock that beats are timed by sleeps as well."""
        if not self._lost and time.time() - self._last_beat > STALE_SECONDS:
            self._renew(self._bucket)
        if self._lost:
            raise LockedError(
                f"{self._bucket.address}: another run has taken over, because this one gave no sign for "
                f"{show_seconds(STALE_SECONDS)}."
            )

    def _is_of_this_scratch(self, content: bytes) -> bool:
        """Return whether a lock is that of a run with the same scratch folder, which is dead: that folder is
        locked by this run."""
        return _read_field(content, "scratch") == self._holder["scratch"]

    def _find_own_version(self) -> Version | None:
        """Return the version of the lock if it is this run's; None if it is another's, or gone."""
        found = self._bucket.read(OBJECT_NAME)
        return found[1] if found is not None and _read_field(found[0], "run") == self.run_id else None

    def _content(self) -> bytes:
        self._beats += 1
        return json.dumps({**self._holder, "beats": self._beats, "written": time.time()}).encode()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._renew(self._hasty_bucket)
                if self._lost:
                    text = f"{self._bucket.address}: another run has taken over; this one ends"
                    self._observer.tell(Event("lock", text))
                    return
            except Exception as error:  # even a bug: without a beat another run would take over
                text = f"the lock could not be renewed: {type(error).__name__}: {error}"
                self._observer.tell(Event("lock", text, loud=False))
            else:
                self._attempt(lambda: self._on_beat(self._hasty_bucket))

    def _renew(self, bucket: Bucket) -> None:
        """Replace the lock, unless it is another run's by now."""
        with self._turn:
            try:
                self._version = bucket.write(OBJECT_NAME, self._content(), replaces=self._version)
            except ConflictError:  # or a beat was written, and its answer was lost
                self._version = self._find_own_version()
            self._lost = self._version is None
            self._last_beat = time.time()

    def _end(self) -> None:
        """Copy the small files for the last time, and remove the lock."""
        self._thread.join()
        if self._lost:
            return
        self._attempt(lambda: self._on_beat(self._hasty_bucket))
        self._attempt(self._release)

    def _release(self) -> None:
        if self._find_own_version() is not None:
            self._hasty_bucket.delete([OBJECT_NAME])

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do what the run does not depend on; report a failure instead of raising it."""
        try:
            action()
        except Exception as error:  # even a bug: the lock is more important
            text = f"{self._bucket.address}: {type(error).__name__}: {error}"
            self._observer.tell(Event("lock", text, loud=False))


def _read_scratch_id(scratch: Path) -> str:
    """Return what tells this scratch folder from all others, also from one of the same name on a machine of
    the same name: a random number that is kept in it. The caller must have the folder locked."""
    path = scratch / WORK_FOLDER / _SCRATCH_ID_NAME
    try:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_file(path).decode("ascii")
        number = secrets.token_hex(16)
        write_quickly(path, number.encode())
    except OSError as error:
        raise output_error(path, error) from error
    return number


def _read_field(content: bytes, name: str) -> object:
    """Return a value of a lock's content; None if it is damaged."""
    try:
        return parse_object(content).get(name)
    except ValueError:
        return None


def is_bucket_locked(bucket: Bucket) -> bool:
    """Return whether the lock of a folder was renewed lately. This machine's clock must be right for it."""
    found = bucket.head(OBJECT_NAME)
    return found is not None and time.time() - found.modified_seconds < STALE_SECONDS


def _describe(content: bytes) -> str:
    try:
        holder = parse_object(content)
        age = show_seconds(max(0.0, time.time() - get(holder, "written", float)))
        return f"process {get(holder, 'process', int)} on {get(holder, 'machine', str)}, last sign {age} ago"
    except ValueError:
        return "an unknown one"
