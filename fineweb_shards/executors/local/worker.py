"""Run one worker process: encode batches, keep their tokens, write them where the parent says.

Four threads: one receives orders, the main thread encodes, one writes, one finishes files (hashes and syncs
them, writes sidecars). So none of them waits for another's disk or network. The process has no state except
caches and the tokens it has not written yet, so that killing it costs only the batches it has. A last thread
ends the process when the parent ends, for whatever reason.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import connection, parent_process

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event
from fineweb_shards.executors.encode_batch import WorkerSpec, encode_batch
from fineweb_shards.executors.exit_cause import OUT_OF_MEMORY_EXIT_CODE, THREAD_FAILED_EXIT_CODE
from fineweb_shards.executors.file_tasks import FileOrder, FileResult, describe_work
from fineweb_shards.executors.local.messages import (
    Broken,
    Encoded,
    Failed,
    Outbox,
    Ready,
    Trying,
    Written,
    receive_order,
)
from fineweb_shards.executors.prefetcher import Prefetcher
from fineweb_shards.executors.task import WorkOrder, WriteOrder
from fineweb_shards.sources.parts import Parts
from fineweb_shards.store.shard_files import TokenWriter
from fineweb_shards.system.machine import apply_priority, offer_to_oom_killer
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Quarantined, Tokens


def run_worker(pipe: connection.Connection) -> None:
    """Receive a WorkerSpec, then do what the parent orders until it closes the pipe. This is the process's
    main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole process group; the parent decides
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by process.py
    try:
        spec: WorkerSpec = pipe.recv()
    except (EOFError, OSError):
        return  # the parent is gone
    apply_priority(spec.priority)
    offer_to_oom_killer()
    outbox = Outbox(pipe)
    _start_thread(outbox, die_with_parent)
    source = spec.source.reopened(outbox)
    try:
        encoder = spec.make_encoder()
    except ShardError as error:
        outbox.send(Failed(error))
        return
    worker = Worker(pipe, spec, source, encoder, outbox)
    for action in (worker.receive_orders, worker.write_blocks, worker.finish_files):
        _start_thread(outbox, action)
    outbox.send(Ready())
    worker.encode_batches()


class Worker:
    """The work of one process: a method for each thread, with queues between them."""

    def __init__(
        self,
        pipe: connection.Connection,
        spec: WorkerSpec,
        source: Parts,
        encoder: Encoder | TokenJoiner,
        outbox: Outbox,
    ) -> None:
        self._pipe = pipe
        self._spec = spec
        self._source = source
        self._prefetcher = Prefetcher(source, outbox)
        self._encoder = encoder
        self._outbox = outbox
        self._writer: TokenWriter = spec.make_writer(outbox)
        self._tokens: dict[tuple[int, int], Tokens] = {}  # by batch and block: encoded, not yet written
        self._batches: queue.SimpleQueue[WorkOrder | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[WriteOrder] = queue.SimpleQueue()
        self._files: queue.SimpleQueue[FileOrder] = queue.SimpleQueue()

    def receive_orders(self) -> None:
        """Receive orders as they arrive, so that the next batch is fetched while this one is encoded."""
        while True:
            try:
                order = receive_order(self._pipe)
            except (EOFError, OSError):
                self._batches.put(None)
                return
            match order:
                case WriteOrder():
                    self._writes.put(order)
                case FileOrder():
                    self._files.put(order)
                case WorkOrder():
                    # Before it is queued: reading must not start before it.
                    self._prefetcher.prefetch(order.batch)
                    self._batches.put(order)

    def encode_batches(self) -> None:
        """Encode batches, tell the parent of their blocks, and keep the tokens."""
        while (order := self._batches.get()) is not None:
            try:
                for index, block in encode_batch(self._source, self._encoder, order, self._announce):
                    self._outbox.send(Encoded(index, self._keep(order.number, index, block)))
                self._outbox.send_done()
            except MemoryError:
                os._exit(OUT_OF_MEMORY_EXIT_CODE)
            except ShardError as error:
                self._outbox.send(Failed(error))
            except (BrokenPipeError, ConnectionResetError):
                return  # the parent is gone
            except Exception as error:
                self._outbox.send(Failed(self._unexpected(order.batch, error)))

    def write_blocks(self) -> None:
        """Write the tokens of blocks where the parent says, and drop them."""
        while True:
            order = self._writes.get()
            try:
                self._write_block(order)
            except ShardError as error:
                self._outbox.send(Broken(order.batch, order.block, error))
            except Exception as error:  # a bug: no document is to blame for it
                bug = ShardError(f"A worker could not write its tokens: {describe_error(error)}")
                self._outbox.send(Broken(order.batch, order.block, bug))

    def _write_block(self, order: WriteOrder) -> None:
        tokens = self._tokens[order.batch, order.block]
        *others, last = order.placements or (None,)
        for placement in others:
            self._writer.write(tokens, placement)
            self._outbox.send(Written(order.batch, order.block, placements=1, dropped=False))
        if last is not None:
            self._writer.write(tokens, last)
        del self._tokens[order.batch, order.block]
        self._outbox.send(Written(order.batch, order.block, placements=int(last is not None), dropped=True))

    def finish_files(self) -> None:
        """Seal segments and write sidecars."""
        while True:
            order = self._files.get()
            assert order.work is not None
            try:
                result = FileResult(order.number, self._spec.finish_file(order.work, self._outbox))
            except ShardError as error:
                result = FileResult(order.number, error=error)
            except Exception as error:
                bug = f"A worker could not {describe_work(order.work)}: {describe_error(error)}"
                result = FileResult(order.number, error=ShardError(bug))
            self._outbox.send(result)

    def _keep(self, batch: int, index: int, block: EncodedBlock) -> EncodedBlock:
        """Keep the tokens of a block, and return it without them; at a seam, return it as it is, because the
        parent has to repair the tokens there."""
        tokens = block.array
        if block.starts_at_seam or block.ends_at_seam or not len(tokens):
            return block
        self._tokens[batch, index] = tokens
        return replace(block, tokens=HeldTokens(batch, index, len(tokens)))

    def _announce(self, document: Quarantined) -> None:
        self._outbox.send(Trying(document))

    def _unexpected(self, batch: Batch, error: Exception) -> ShardError:
        """Return the error for an exception that is no ShardError, with its traceback."""
        name = self._source.file_of(batch).name
        return ShardError(f"A worker failed on {name} at position {batch.position}: {describe_error(error)}")


def _start_thread(outbox: Outbox, action: Callable[[], None]) -> None:
    threading.Thread(target=partial(_run_thread, outbox, action), daemon=True).start()


def _run_thread(outbox: Outbox, action: Callable[[], None]) -> None:
    """Run a thread's action; if it fails, end the process, which could not work without the thread."""
    try:
        action()
    except BaseException as error:  # any failure
        try:
            outbox.tell(Event("worker", f"a thread of worker {os.getpid()} failed: {describe_error(error)}"))
        finally:
            out_of_memory = isinstance(error, MemoryError)
            os._exit(OUT_OF_MEMORY_EXIT_CODE if out_of_memory else THREAD_FAILED_EXIT_CODE)


def die_with_parent() -> None:
    """Wait until the parent process has ended, then end this one."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
