"""Define the messages from a worker to its executor, and send and receive them through a pipe.

In the other direction go work orders (task.py).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import connection

import numpy as np

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.types import EncodedBlock, Quarantined

_ALIVE_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has loaded its engine, which has passed the self-test."""


@dataclass(frozen=True, slots=True)
class Trying:
    """The worker is about to encode this document; if it dies now, the document is suspected."""

    document: Quarantined


@dataclass(frozen=True, slots=True)
class Done:
    """The worker has sent all blocks of its batch."""

    fetched_bytes: int = 0  # over the network, since the previous Done


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker can't do its batch, and no other worker could."""

    error: ShardError


@dataclass(frozen=True, slots=True)
class Waiting:
    """The worker waits for the network, for this reason; None: no longer."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker is receiving bytes from the network, but slowly."""


Message = Alive | Ready | Trying | Done | Failed | Waiting | Event | EncodedBlock


class Outbox(Observer):
    """Sends messages to the parent. Threads share it: a lock keeps the two parts of a block together."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._fetched_bytes = 0  # not yet reported
        self._fetched_lock = threading.Lock()  # a lock of its own, because sending may block for long
        self._last_alive = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message. The tokens of a block follow as raw bytes, which is faster than pickling them."""
        if not isinstance(message, EncodedBlock):
            with self._lock:
                self._pipe.send(message)
            return
        # Prepared first: if it failed between the two parts, the next message would be taken for tokens.
        data = message.tokens.data.cast("B") if len(message.tokens) else b""
        with self._lock:
            self._pipe.send(replace(message, tokens=message.tokens[:0]))  # empty, but with the dtype
            self._pipe.send_bytes(data)

    def tell(self, event: Event) -> None:
        self.send(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self.send(Waiting(reason))

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

    def send_done(self) -> None:
        """Tell the parent that all blocks of a batch were sent."""
        with self._fetched_lock:
            done, self._fetched_bytes = Done(self._fetched_bytes), 0
        self.send(done)


def receive(pipe: connection.Connection) -> Message:
    """Read the next message that an outbox has sent from the other end of the pipe."""
    message: Message = pipe.recv()
    if isinstance(message, EncodedBlock):
        return replace(message, tokens=np.frombuffer(pipe.recv_bytes(), message.tokens.dtype))
    return message
