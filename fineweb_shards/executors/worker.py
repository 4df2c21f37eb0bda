"""One tokenizer process: reads a batch, encodes it, sends its blocks back.

It keeps no state but caches, so killing it costs one batch. It ends when the parent does, however that
happens: a thread watches for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, parent_process

from fineweb_shards.errors import ShardError
from fineweb_shards.executors.careful import encode_carefully, holds_any
from fineweb_shards.executors.messages import Failed, Order, Outbox, Ready, Trying
from fineweb_shards.machine import be_nice, offer_to_oom_killer
from fineweb_shards.sources.base import Source
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.encoder import Encoder, UnencodableError
from fineweb_shards.tokenizers.selftest import check_engine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

# How a worker ends that has run out of memory: it is not known which document asked for too much.
OUT_OF_MEMORY_EXIT_CODE = 112


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker needs to know."""

    source: Source
    engine: str
    eot_first: bool
    seed: int

    def make_encoder(self) -> Encoder:
        """The worker's encoder, once it has passed its self-test."""
        reference = TiktokenEngine()
        engine_class = resolve_engine(self.engine)
        engine = reference if engine_class is TiktokenEngine else engine_class()
        encoder = Encoder(engine, reference, eot_first=self.eot_first, seed=self.seed)
        check_engine(encoder, engine.name, reference)
        return encoder


def run_worker(pipe: connection.Connection, spec: WorkerSpec) -> None:
    """The main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    be_nice()
    offer_to_oom_killer()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    outbox = Outbox(pipe)
    spec.source.report_to(outbox)
    try:
        encoder = spec.make_encoder()
    except ShardError as error:
        outbox.send(Failed(error))
        return
    outbox.send(Ready())
    inbox: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_orders, args=(pipe, spec.source, inbox), daemon=True).start()
    while (order := inbox.get()) is not None:
        try:
            for block in encode_batch(spec.source, encoder, order, lambda one: outbox.send(Trying(one))):
                outbox.send(block)
            outbox.send_done()
        except MemoryError:
            os._exit(OUT_OF_MEMORY_EXIT_CODE)
        except ShardError as error:
            outbox.send(Failed(error))
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except Exception as error:
            outbox.send(Failed(_unexpected(spec, order.batch, error)))


def _receive_orders(
    pipe: connection.Connection, source: Source, inbox: queue.SimpleQueue[Order | None]
) -> None:
    """Take orders as they come, so that the next batch is fetched while this one is encoded."""
    while True:
        try:
            order: Order = pipe.recv()
        except (EOFError, OSError):
            inbox.put(None)
            return
        source.prefetch(order.batch)  # first, or it would be read before its bytes are asked for
        inbox.put(order)


def encode_batch(
    source: Source, encoder: Encoder, order: Order, announce: Callable[[Quarantined], None]
) -> Iterator[EncodedBlock]:
    """The work itself, the same for every executor: a block for each chunk."""
    name = source.files[order.batch.file].name
    for number, chunk in enumerate(source.chunks(order.batch)):
        if number < order.first_block:
            continue
        block = None
        if not order.careful and not holds_any(chunk, order.left_out):
            with contextlib.suppress(UnencodableError):  # a document at a time will show which one it is
                block = encoder.encode(chunk, name)
        if block is None:
            block = encode_carefully(chunk, name, encoder, order, announce, source.settings.batch_bytes)
        yield block


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
