"""Define the messages between a worker and its executor.

No message contains tokens, except those of a block with a seam. Values that travel have no slots: pickling
them would take four times as long.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing import connection, reduction

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.file_tasks import FileOrder, FileResult
from fineweb_shards.executors.task import WorkOrder, WriteOrder
from fineweb_shards.system.shared_bytes import SharedBytes
from fineweb_shards.types import EncodedBlock, Quarantined

_ALIVE_EVERY_SECONDS = 60.0


Order = WorkOrder | WriteOrder | FileOrder  # to a worker


def send_order(pipe: connection.Connection, order: Order, worker_pid: int) -> None:
    """Send an order to a worker. Bytes that it shares are followed by their descriptor."""
    pipe.send(order)
    if (shared := _shared_bytes(order)) is not None:
        reduction.send_handle(pipe, shared.descriptor, worker_pid)


def receive_order(pipe: connection.Connection) -> Order:
    """Receive an order in a worker."""
    order: Order = pipe.recv()
    if (shared := _shared_bytes(order)) is not None:
        shared.attach(reduction.recv_handle(pipe))
    return order


def _shared_bytes(order: Order) -> SharedBytes | None:
    payload = order.batch.payload if isinstance(order, WorkOrder) else None
    return payload if isinstance(payload, SharedBytes) and payload.has_descriptor else None


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its engine, which has passed the self-test."""


@dataclass(frozen=True)
class Trying:
    """The worker is about to encode this document; if it dies now, the document is suspected."""

    document: Quarantined


@dataclass(frozen=True)
class Encoded:
    """The worker has encoded a block of its batch, and keeps its tokens."""

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


class Outbox(Observer):
    """Sends messages to the parent. Threads share it."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._fetched_bytes = 0  # not yet reported
        self._waited_seconds = 0.0  # likewise
        self._fetched_lock = threading.Lock()  # a lock of its own, because sending may block for long
        self._last_alive = time.monotonic()

    def send(self, message: Message) -> None:
        with self._lock:
            self._pipe.send(message)

    def tell(self, event: Event) -> None:
        self.send(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self.send(Waiting(cause, reason))

    def add_fetched(self, size_bytes: int) -> None:
        """Count bytes received from the network; `send_done` reports the sum, which saves messages.

        On a slow connection an `Alive` message now and then tells the watchdog that the worker is not stuck.
        """
        now = time.monotonic()
        with self._fetched_lock:
            self._fetched_bytes += size_bytes
            quiet = now - self._last_alive > _ALIVE_EVERY_SECONDS
            if quiet:
                self._last_alive = now
        if quiet:
            self.send(Alive())

    def add_fetch_wait(self, seconds: float) -> None:
        with self._fetched_lock:
            self._waited_seconds += seconds

    def send_done(self) -> None:
        """Tell the parent that all blocks of a batch were sent."""
        with self._fetched_lock:
            done = Done(self._fetched_bytes, self._waited_seconds)
            self._fetched_bytes, self._waited_seconds = 0, 0.0
        self.send(done)
