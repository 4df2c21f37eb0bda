"""Run one worker process: encode batches, hold their tokens, and write them on order.

It has four threads, so that none waits for another's disk or network: one receives orders, the main thread encodes, one
writes, one finishes files (hashes and syncs them, writes sidecars). Its only state is caches and unwritten tokens, so
killing it costs only its current batches. A fifth thread ends the process when the parent ends for any reason.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import connection, parent_process, reduction

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event
from fineweb_shards.executors import messages
from fineweb_shards.executors.encode_batch import Prefetcher, WorkerSpec, batch_error, encode_batch, hold_tokens
from fineweb_shards.executors.messages import FileOrder, Message, WorkerObserver, WorkOrder, WriteOrder
from fineweb_shards.system.machine import apply_priority, offer_to_oom_killer
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.types import Tokens

Order = WorkOrder | WriteOrder | FileOrder  # to a worker
# Exit codes of workers that end themselves.
OUT_OF_MEMORY_EXIT_CODE = 112  # the document to blame is unknown
THREAD_FAILED_EXIT_CODE = 113  # without that thread it might never respond
_ALIVE_EVERY_SECONDS = 60.0


def send_order(pipe: connection.Connection, order: Order, worker_pid: int) -> None:
    """Send an order to a worker, followed by the descriptor of its shared bytes, if it has any."""
    pipe.send(order)
    if (shared := _shared_bytes(order)) is not None:
        reduction.send_handle(pipe, shared.descriptor, worker_pid)


def receive_order(pipe: connection.Connection) -> Order:
    order: Order = pipe.recv()
    if (shared := _shared_bytes(order)) is not None:
        shared.attach(reduction.recv_handle(pipe))
    return order


def _shared_bytes(order: Order) -> SharedBytes | None:
    payload = order.batch.payload if isinstance(order, WorkOrder) else None
    return payload if isinstance(payload, SharedBytes) and payload.has_descriptor else None


class Outbox(WorkerObserver):
    """Sends messages to the parent. Thread-safe."""

    def __init__(self, pipe: connection.Connection) -> None:
        super().__init__(self.send)
        self._pipe = pipe
        self._lock = threading.Lock()
        self._last_alive = time.monotonic()

    def send(self, message: Message) -> None:
        with self._lock:
            self._pipe.send(message)

    def add_fetched(self, size_bytes: int) -> None:
        """Count the bytes. An occasional message shows the watchdog that a slow download is not stuck."""
        super().add_fetched(size_bytes)
        now = time.monotonic()
        if now - self._last_alive > _ALIVE_EVERY_SECONDS:
            self._last_alive = now
            self.send(messages.Signal.ALIVE)


def run_worker(pipe: connection.Connection) -> None:
    """The main function of the process: receive a WorkerSpec, then follow orders until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole process group; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by pool.py
    try:
        spec: WorkerSpec = pipe.recv()
    except (EOFError, OSError):
        return  # the parent is gone
    apply_priority(spec.priority)
    offer_to_oom_killer()
    outbox = Outbox(pipe)
    _start_thread(outbox, die_with_parent)
    try:
        worker = Worker(pipe, spec, outbox)
    except ShardError as error:
        outbox.send(messages.Done(error=error))
        return
    for action in (worker.receive_orders, worker.write_blocks, worker.finish_files):
        _start_thread(outbox, action)
    outbox.send(messages.Signal.READY)
    worker.encode_batches()


class Worker:
    """The work of one process: a method for each thread, with queues between them."""

    def __init__(self, pipe: connection.Connection, spec: WorkerSpec, outbox: Outbox) -> None:
        self._pipe, self._spec, self._outbox = pipe, spec, outbox
        self._source = spec.source.reopened(outbox)
        self._prefetcher = Prefetcher(self._source, outbox)
        self._encoder = spec.make_encoder()
        self._writer = spec.make_writer(outbox)
        self._tokens: dict[tuple[int, int], Tokens] = {}  # unwritten, by batch and block
        self._dropped = threading.Condition()  # notified when tokens were dropped
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
                    # Prefetch first: once queued, the batch may be read at any time.
                    self._prefetcher.prefetch(order.batch)
                    self._batches.put(order)

    def encode_batches(self) -> None:
        """Encode batches, report their blocks to the parent, and hold the tokens."""
        while (order := self._batches.get()) is not None:
            try:
                for index, block in encode_batch(self._source, self._encoder, order, self._outbox.send):
                    if self._spec.holds_tokens:
                        block, tokens = hold_tokens(order, index, block)
                        if tokens is not None:
                            self._tokens[order.number, index] = tokens
                    self._outbox.send(messages.Encoded(index, block))
                    if order.is_large:
                        self._wait_for_writes(order.number)
                self._outbox.send(self._outbox.take_done())
            except MemoryError:
                os._exit(OUT_OF_MEMORY_EXIT_CODE)
            except (BrokenPipeError, ConnectionResetError):
                return  # the parent is gone
            except Exception as error:
                self._outbox.send(messages.Done(error=batch_error(self._source, order.batch, error)))

    def _wait_for_writes(self, batch: int) -> None:
        """Wait until most tokens of a batch are written: a disk or an upload may be slower than the encoder."""

        def held_bytes() -> int:
            return sum(tokens.nbytes for (number, _), tokens in list(self._tokens.items()) if number == batch)

        with self._dropped:
            while held_bytes() > messages.MOST_HELD_BYTES:
                if not self._dropped.wait(_ALIVE_EVERY_SECONDS):
                    self._outbox.send(messages.Signal.ALIVE)

    def write_blocks(self) -> None:
        while True:
            order = self._writes.get()
            key = order.batch, order.block
            try:
                tokens = self._tokens[key]
                for number, placement in enumerate(order.placements, 1):
                    self._writer.write(tokens, placement)
                    if number < len(order.placements) or not order.last:
                        self._outbox.send(messages.Written(*key, placements=1))
                if order.last:
                    with self._dropped:
                        del tokens, self._tokens[key]
                        self._dropped.notify()
                    self._outbox.send(messages.Written(*key, placements=min(1, len(order.placements)), dropped=True))
            except Exception as error:
                if not isinstance(error, ShardError):  # a bug: no document is to blame
                    error = ShardError(f"A worker could not write its tokens: {describe_error(error)}")
                self._outbox.send(messages.Written(*key, error=error))

    def finish_files(self) -> None:
        while True:
            order = self._files.get()
            self._outbox.send(messages.try_order(order, partial(self._spec.finish_file, order, self._outbox)))


def _start_thread(outbox: Outbox, action: Callable[[], None]) -> None:
    """Start a thread; end the process if its action fails, because it can't work without the thread."""

    def run() -> None:
        try:
            action()
        except BaseException as error:
            try:
                failure = f"a thread of worker {os.getpid()} failed: {describe_error(error)}"
                outbox.tell(Event("worker", failure))
            finally:
                out_of_memory = isinstance(error, MemoryError)
                os._exit(OUT_OF_MEMORY_EXIT_CODE if out_of_memory else THREAD_FAILED_EXIT_CODE)

    threading.Thread(target=run, daemon=True).start()


def die_with_parent() -> None:
    """Wait until the parent process ends, then end this one."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
