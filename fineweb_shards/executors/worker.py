"""One tokenizer process: reads a batch, encodes it, sends its blocks back.

It keeps no state but caches, so killing it costs one batch. It ends when the parent does, however that
happens: a thread watches for it.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, parent_process

import numpy as np

from fineweb_shards.errors import ShardError
from fineweb_shards.guard import be_nice
from fineweb_shards.sources.base import Source
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.selftest import check_engine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.types import Batch, EncodedBlock

_NO_TOKENS = np.empty(0, np.uint16)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker needs to know."""

    source: Source
    engine: str
    eot_first: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded and has passed its self-test."""


@dataclass(frozen=True, slots=True)
class Done:
    """All blocks of the batch are sent."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch can't be done, here or anywhere."""

    error: ShardError


@dataclass(frozen=True, slots=True)
class Waiting:
    """The network is being waited for; None: no longer."""

    reason: str | None


Message = Ready | Done | Failed | Waiting | EncodedBlock


class Outbox:
    """The way to the parent. Several threads use it, and a block is two messages."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """A message; a block's tokens follow as raw bytes, which is faster than a pickle."""
        with self._lock:
            if isinstance(message, EncodedBlock):
                self._pipe.send(replace(message, tokens=_NO_TOKENS))
                self._pipe.send_bytes(message.tokens.data.cast("B") if len(message.tokens) else b"")
            else:
                self._pipe.send(message)


def receive(pipe: connection.Connection) -> Message:
    """The other end of an outbox."""
    message: Message = pipe.recv()
    if isinstance(message, EncodedBlock):
        return replace(message, tokens=np.frombuffer(pipe.recv_bytes(), np.uint16))
    return message


def run_worker(pipe: connection.Connection, spec: WorkerSpec) -> None:
    """The main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    be_nice()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    outbox = Outbox(pipe)
    spec.source.tell_waits_to(lambda reason: outbox.send(Waiting(reason)))
    try:
        encoder = _make_encoder(spec)
    except ShardError as error:
        outbox.send(Failed(error))
        return
    outbox.send(Ready())
    inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_batches, args=(pipe, spec.source, inbox), daemon=True).start()
    while (batch := inbox.get()) is not None:
        try:
            for block in encode_batch(spec.source, encoder, batch):
                outbox.send(block)
            outbox.send(Done())
        except ShardError as error:
            outbox.send(Failed(error))
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except Exception as error:
            outbox.send(Failed(_unexpected(spec, batch, error)))


def _receive_batches(
    pipe: connection.Connection, source: Source, inbox: queue.SimpleQueue[Batch | None]
) -> None:
    """Take batches as they come, so that the next one is fetched while this one is encoded."""
    while True:
        try:
            batch: Batch = pipe.recv()
        except (EOFError, OSError):
            inbox.put(None)
            return
        source.prefetch(batch)  # first, or the batch would be read before its bytes are asked for
        inbox.put(batch)


def encode_batch(source: Source, encoder: Encoder, batch: Batch) -> Iterator[EncodedBlock]:
    """The work itself, the same for every executor."""
    name = source.files[batch.file].name
    for chunk in source.chunks(batch):
        yield encoder.encode(chunk, name)


def _make_encoder(spec: WorkerSpec) -> Encoder:
    reference = TiktokenEngine()
    engine_class = resolve_engine(spec.engine)
    engine = reference if engine_class is TiktokenEngine else engine_class()
    encoder = Encoder(engine, reference, eot_first=spec.eot_first, seed=spec.seed)
    check_engine(encoder, engine.name, reference)
    return encoder


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _unexpected(spec: WorkerSpec, batch: Batch, error: Exception) -> ShardError:
    name = spec.source.files[batch.file].name
    return ShardError(
        f"A worker failed on {name} at position {batch.position}: {type(error).__name__}: {error}\n"
        + "".join(traceback.format_exception(error)).rstrip()
    )
