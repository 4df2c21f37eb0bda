"""What a worker says to the executor, and the pipe it goes through; back come work orders (task.py)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import connection

import numpy as np

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.types import EncodedBlock, Quarantined

_SIGN_OF_LIFE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded and has passed its self-test."""


@dataclass(frozen=True, slots=True)
class Trying:
    """If this is the last that is heard of the worker, it was this document."""

    document: Quarantined


@dataclass(frozen=True, slots=True)
class Done:
    """All blocks of the batch are sent."""

    fetched_bytes: int = 0  # over the network since the last batch was done


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch can't be done, here or anywhere."""

    error: ShardError


@dataclass(frozen=True, slots=True)
class Waiting:
    """The network is being waited for; None: no longer."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class Alive:
    """Bytes arrive, if slowly."""


Message = Alive | Ready | Trying | Done | Failed | Waiting | Event | EncodedBlock


class Outbox(Observer):
    """The way to the parent. Several threads use it, and a block is two messages."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._fetched_bytes = 0  # not told yet
        self._fetched_lock = threading.Lock()  # its own: a pipe may be full for long
        self._last_sign = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message; a block's tokens follow as raw bytes, which is faster than a pickle."""
        if not isinstance(message, EncodedBlock):
            with self._lock:
                self._pipe.send(message)
            return
        # Made first: nothing may fail between the two messages, or the next would be taken for tokens.
        data = message.tokens.data.cast("B") if len(message.tokens) else b""
        with self._lock:
            self._pipe.send(replace(message, tokens=message.tokens[:0]))  # which says how wide they are
            self._pipe.send_bytes(data)

    def tell(self, event: Event) -> None:
        self.send(event)

    def wait(self, cause: str, reason: str | None) -> None:
        self.send(Waiting(reason))

    def fetch(self, size_bytes: int) -> None:
        """Count bytes that have come over the network. They are told with the next batch: a message for each
        answer would cost more. But on a slow line one is a sign of life now and then."""
        now = time.monotonic()
        with self._fetched_lock:
            self._fetched_bytes += size_bytes
            quiet = now - self._last_sign > _SIGN_OF_LIFE_SECONDS
            if quiet:
                self._last_sign = now
        if quiet:
            self.send(Alive())

    def send_done(self) -> None:
        """Tell that all blocks of a batch are sent."""
        with self._fetched_lock:
            done, self._fetched_bytes = Done(self._fetched_bytes), 0
        self.send(done)


def receive(pipe: connection.Connection) -> Message:
    """Read what an outbox at the other end of the pipe has sent."""
    message: Message = pipe.recv()
    if isinstance(message, EncodedBlock):
        return replace(message, tokens=np.frombuffer(pipe.recv_bytes(), message.tokens.dtype))
    return message
