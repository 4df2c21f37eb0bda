"""Lock a folder of a bucket for one run: an object that is replaced every few seconds, by compare-and-set.

An object store can't tell whether a process still lives. So a run that finds a lock waits: if the object is
replaced meanwhile, its run is alive, and this one is refused. If not, for long enough, it is dead, and this
run takes the lock over. A dead run of the same scratch folder is recognized at once, by that folder's lock.

Even a run that was only asleep, and wakes up after another one has taken over, does no harm: its next
manifest is refused, because it is not the one that it has read.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.buckets.errors import ConflictError
from fineweb_shards.buckets.objects import Version
from fineweb_shards.errors import LockedError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.system.json_values import get, parse_object
from fineweb_shards.units import show_seconds

OBJECT_NAME = f"{WORK_FOLDER}/lock.json"
BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0  # without a beat: the run is dead
_LOOK_SECONDS = 2.0
_LONGEST_JOIN_SECONDS = 10.0


class BucketLock:
    """The lock of one run, a context manager. `on_beat` is called with every beat, and at the end."""

    def __init__(
        self, bucket: Bucket, scratch: Path, on_beat: Callable[[], None], observer: Observer
    ) -> None:
        self._bucket = bucket
        self._on_beat = on_beat
        self._observer = observer
        self._holder = {
            "run": secrets.token_hex(8),
            "machine": socket.gethostname(),
            "scratch": str(scratch.resolve()),
            "process": os.getpid(),
        }
        self._beats = 0
        self._version: Version | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> Self:
        seen: Version | None = None
        since = 0.0
        while self._version is None:
            found = self._bucket.read(OBJECT_NAME)
            version = found[1] if found else None
            if found is not None and not self._was_ours(found[0]):
                if seen is None:
                    seen, since = version, time.monotonic()
                    self._observer.set_wait("lock", f"looking whether {_describe(found[0])} is still at work")
                if version != seen:
                    self._observer.set_wait("lock", None)
                    raise LockedError(
                        f"{self._bucket.address}: another run is writing here ({_describe(found[0])})."
                    )
                if time.monotonic() - since < STALE_SECONDS:
                    time.sleep(_LOOK_SECONDS)
                    continue
            try:
                self._version = self._bucket.write(OBJECT_NAME, self._content(), replaces=version)
            except ConflictError:
                continue  # another run was quicker: look again
        if seen is not None:
            self._observer.set_wait("lock", None)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(_LONGEST_JOIN_SECONDS)
        self._attempt(self._on_beat)
        self._attempt(self._release)

    def _was_ours(self, content: bytes) -> bool:
        """Return whether a lock is that of a run with the same scratch folder, which is dead: that folder is
        locked by this run."""
        try:
            holder = parse_object(content)
            return all(holder.get(name) == self._holder[name] for name in ("machine", "scratch"))
        except ValueError:
            return False

    def _content(self) -> bytes:
        self._beats += 1
        return json.dumps({**self._holder, "beats": self._beats, "written": time.time()}).encode()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._version = self._bucket.write(OBJECT_NAME, self._content(), replaces=self._version)
            except ConflictError:
                text = f"{self._bucket.address}: another run has taken over; the next shard will be refused"
                self._observer.tell(Event("lock", text))
                return
            except ShardError as error:
                self._observer.tell(Event("lock", f"the lock could not be renewed: {error.message}"))
            self._attempt(self._on_beat)

    def _release(self) -> None:
        found = self._bucket.read(OBJECT_NAME)
        if found is not None and parse_object(found[0]).get("run") == self._holder["run"]:
            self._bucket.delete([OBJECT_NAME])

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do what the run does not depend on; report a failure instead of raising it."""
        try:
            action()
        except (ShardError, OSError, ValueError) as error:
            self._observer.tell(Event("lock", f"{self._bucket.address}: {error}", loud=False))


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
