"""Define the messages of workers to their executor: processes on this machine, or tasks on a Ray cluster.

No message contains tokens, except those of a block with a seam. Values that travel have no slots: pickling
them would take four times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.file_tasks import FileResult
from fineweb_shards.types import EncodedBlock, Quarantined


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its engine, which has passed the self-test."""


@dataclass(frozen=True)
class Trying:
    """The worker is about to encode this document; if it dies now, the document is suspected."""

    document: Quarantined


@dataclass(frozen=True)
class Encoded:
    """The worker has encoded a block of its batch, and holds its tokens."""

    index: int  # of the block, in its batch
    block: EncodedBlock


@dataclass(frozen=True)
class Done:
    """The worker has encoded all blocks of its batch."""

    fetched_bytes: int = 0  # over the network, since the previous Done
    waited_seconds: float = 0.0  # for those bytes, with nothing else to do


@dataclass(frozen=True)
class Failed:
    """The worker can't do its batch, and no other worker could."""

    error: ShardError


@dataclass(frozen=True)
class Written:
    """The worker has written the next placement of a block, if it has any."""

    batch: int
    block: int
    placements: int  # 1, or 0 if the block belongs nowhere
    dropped: bool  # it was the last one: the worker has dropped the tokens


@dataclass(frozen=True)
class Broken:
    """The worker could not write a block. The run has to stop."""

    batch: int
    block: int
    error: ShardError


@dataclass(frozen=True)
class Waiting:
    """The worker waits for the network or the disk (`cause`), for this reason; None: no longer."""

    cause: str
    reason: str | None


@dataclass(frozen=True)
class Alive:
    """The worker is receiving bytes from the network, but slowly."""


Message = Alive | Ready | Trying | Encoded | Done | Failed | Written | FileResult | Broken | Waiting | Event


class WorkerObserver(Observer):
    """Passes on what happens in a worker with `send`, and counts what it fetches. Threads share it."""

    def __init__(self, send: Callable[[Event | Waiting], object]) -> None:
        self._send = send
        self._fetched_bytes = 0  # not yet reported
        self._waited_seconds = 0.0  # likewise
        self._fetched_lock = threading.Lock()  # a lock of its own, because sending may block for long

    def tell(self, event: Event) -> None:
        self._send(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self._send(Waiting(cause, reason))

    def add_fetched(self, size_bytes: int) -> None:
        """Count bytes received from the network; only their sum is reported, which saves messages."""
        with self._fetched_lock:
            self._fetched_bytes += size_bytes

    def add_fetch_wait(self, seconds: float) -> None:
        with self._fetched_lock:
            self._waited_seconds += seconds

    def take_done(self) -> Done:
        """Return the message that a batch is done, with what was fetched since the last one."""
        with self._fetched_lock:
            done = Done(self._fetched_bytes, self._waited_seconds)
            self._fetched_bytes, self._waited_seconds = 0, 0.0
        return done
