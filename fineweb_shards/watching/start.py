"""Record the waits of a build before its run begins, while the hub or a bucket is asked for its files.

The run's own monitor (monitor.py) needs workers and files. Until then the log and the heartbeat, and so
`status`, would know nothing of an outage, which may last for an hour.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from fineweb_shards.events import Event, Observer
from fineweb_shards.watching.heartbeat import Heartbeat, Invocation
from fineweb_shards.watching.log import EventLog
from fineweb_shards.watching.monitor import HEARTBEAT_EVERY_SECONDS
from fineweb_shards.watching.snapshot import STARTING, STOPPED, WAITING, Snapshot


class StartObserver(Observer):
    """Passes everything on, and records waits. A context manager around what is done before the run; nothing
    is written if it does not wait."""

    def __init__(
        self, shown: Observer, folder: Path, invocation: Invocation, done_tokens: int, shard_tokens: int
    ) -> None:
        self._shown = shown
        self._folder = folder
        self._invocation = invocation
        self._done_tokens = done_tokens
        self._shard_tokens = shard_tokens
        self._log = EventLog(folder)
        self._waits: dict[str, str] = {}  # cause to reason
        self._waited = False
        self._ended = threading.Event()

    def __enter__(self) -> StartObserver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._waited and error is not None:
            # By attribute: an interruption has both, and need not be one of our errors.
            code = getattr(error, "exit_code", 1)
            reason = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            self._log.write(Event("end", f"stopped with exit code {code}: {reason}"))
            self._write_heartbeat(STOPPED, reason, code)

    def tell(self, event: Event) -> None:
        self._shown.tell(event)
        if self._waited:
            self._log.write(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self._shown.set_wait(cause, reason)
        if reason is None:
            self._waits.pop(cause, None)
            self._log.write(Event("wait", f"the wait for the {cause} is over"))
        else:
            if cause not in self._waits:
                self._log.write(Event("wait", reason))
            self._waits[cause] = reason
        self._record()
        if not self._waited and not self._ended.is_set():
            self._waited = True
            threading.Thread(target=self._keep_recording, name="start", daemon=True).start()

    def _keep_recording(self) -> None:
        while not self._ended.wait(HEARTBEAT_EVERY_SECONDS):
            self._record()

    def _record(self) -> None:
        reason = "; ".join(list(self._waits.values()))
        if not self._ended.is_set():
            self._write_heartbeat(WAITING if reason else STARTING, reason)

    def _write_heartbeat(self, state: str, reason: str, exit_code: int | None = None) -> None:
        done, now = self._done_tokens, time.time()
        snapshot = Snapshot(
            state=state,
            reason=reason,
            tokens=done,
            expected_tokens=None,
            expected_exact=False,
            resumed_tokens=done,
            shard=0,
            shard_tokens=0,
            shard_size_tokens=self._shard_tokens,
            tokens_per_second=None,
            seconds_left=None,
            elapsed_seconds=now - self._invocation.started,
            workers=0,
            memory_bytes=0,
            peak_memory_bytes=0,
            finished_shards=0,
            verified_shards=0,
        )
        # A folder that can't be written is an error of the run itself, not of those who watch it.
        with contextlib.suppress(OSError):
            Heartbeat(now, self._invocation, snapshot, exit_code).save(self._folder)
