"""Run a schedule with worker processes on this machine: send orders, receive messages, replace workers.

A worker that dies is replaced, and its batches are done again: `multiprocessing.Pool` would hang for ever
(cpython#66587, #96062), and `ProcessPoolExecutor` would lose the whole pool. Every worker has a pipe of its
own, because the lock of a shared queue is never released if its holder dies (cpython#88304).

Everything happens in the caller's thread, inside `encode`: while the caller is busy writing, nothing is
received, workers block on their pipes, and memory does not grow. While the machine is short of memory
(memory_guard.py), no work is given out; if that is not enough, workers are ended until it has passed. Only
the watchdog has a thread of its own. Which worker gets what is decided in schedule.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import connection
from typing import Self

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.messages import (
    Alive,
    Done,
    Failed,
    Message,
    Ready,
    Trying,
    Waiting,
    receive,
)
from fineweb_shards.executors.local.pool import WorkerPool
from fineweb_shards.executors.local.process import WorkerProcess
from fineweb_shards.executors.local.producer import Producer
from fineweb_shards.executors.local.watchdog import Watchdog
from fineweb_shards.executors.schedule import Schedule
from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.executors.unreadable_batch import replace_unreadable
from fineweb_shards.system.memory_guard import LOOK_EVERY_SECONDS, MemoryGuard
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

# A worker gets its next batch before it has finished the last, so that it never waits for an order. A batch
# that contains its text is only sent to an idle worker: otherwise both could block on a full pipe.
_QUEUED_REFERENCES = 2
_QUEUED_TEXTS = 1


class LocalExecutor(Executor):
    """Tokenizes with worker processes. `quarantined` are documents that earlier runs left out; `observer` is
    told of dead workers and of waits."""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        window_bytes: int,
        guard: MemoryGuard,
        quarantined: Iterable[Quarantined] = (),
        observer: Observer | None = None,
    ) -> None:
        self._count = workers
        self._guard = guard
        self._observer = observer or Observer()
        self._pool = WorkerPool(spec, guard, self._observer)
        self._watchdog = Watchdog(lambda: self._awaited, self._observer)
        self._awaited: list[WorkerProcess] = []  # watched by the watchdog; empty while the caller is busy
        by_value = any(file.by_value for file in spec.source.files)
        queued = _QUEUED_TEXTS if by_value else _QUEUED_REFERENCES
        unreadable = partial(replace_unreadable, spec.source)
        self._schedule: Schedule[WorkerProcess] = Schedule(window_bytes, queued, unreadable, quarantined)

    def __enter__(self) -> Self:
        self._pool.fill(self._count)
        self._watchdog.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watchdog.__exit__()
        self._pool.stop()

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def used_bytes(self) -> int:
        return self._guard.used_bytes

    @property
    def peak_bytes(self) -> int:
        return self._guard.peak_bytes

    @property
    def _workers(self) -> list[WorkerProcess]:
        return self._pool.workers

    def encode(self, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
        producer = Producer(batches, ahead=2 * self._count)
        try:
            while True:
                self._apply_memory_advice()
                needs_batch = self._dispatch(producer)
                if self._schedule.has_output:
                    self._awaited = []
                    yield from self._schedule.take_output()
                elif self._schedule.is_empty and producer.ended:
                    if producer.failure is not None:
                        raise producer.failure
                    return
                else:
                    self._wait([producer.wakeup] if needs_batch else [])
        finally:
            self._awaited = []
            producer.stop()

    def _apply_memory_advice(self) -> None:
        """End workers as the memory guard says; start missing workers if memory allows it."""
        for worker in self._pool.apply_memory_advice(self._schedule.has_work):
            self._end(worker)
        self._pool.fill(1 if self._schedule.tries_alone else self._count)

    def _dispatch(self, producer: Producer) -> bool:
        """Give batches to all workers that may have more. Return whether to wait for the next batch."""
        while not self._pool.paused and (
            (worker := self._schedule.least_busy(self._pool.available)) is not None
        ):
            if self._schedule.needs_batch and not producer.ended:
                batch = producer.take()
                if batch is None:
                    return not producer.ended
                self._schedule.add(batch)
            order = self._schedule.give_next(worker)
            if order is None:
                return False
            self._send(worker, order)
        return False

    def _send(self, worker: WorkerProcess, order: WorkOrder) -> None:
        if order.one_by_one:
            worker.note_order()
        self._awaited = [worker]  # `send` blocks if the worker does not receive
        try:
            worker.pipe.send(order)
        except OSError:  # it has died; _wait will notice, and handle it
            return

    def _wait(self, wakeups: list[connection.Connection]) -> None:
        """Wait for messages and deaths of workers, and handle them.

        A readable connection in `wakeups` ends the wait, too, and so does the next look of the memory guard.
        """
        pipes = {worker.pipe: worker for worker in self._workers if self._schedule.may_receive(worker)}
        deaths = {worker.sentinel: worker for worker in self._workers}
        self._awaited = [worker for worker in pipes.values() if self._should_respond(worker)]
        for happened in connection.wait([*pipes, *deaths, *wakeups], timeout=LOOK_EVERY_SECONDS):
            if isinstance(happened, connection.Connection) and happened in pipes:
                if pipes[happened] in self._workers:  # it was not ended by an earlier event of this wait
                    self._receive(pipes[happened])
            elif isinstance(happened, int) and deaths[happened] in self._workers:
                worker = deaths[happened]
                # Messages that it sent before its death are received first.
                if worker.pipe not in pipes or not worker.pipe.poll():
                    self._handle_death(worker)

    def _should_respond(self, worker: WorkerProcess) -> bool:
        """Return whether a worker has work, or is still starting, and does not wait for the network."""
        return (self._schedule.has_work(worker) or not worker.ready) and worker.waiting is None

    def _receive(self, worker: WorkerProcess) -> None:
        self._awaited = [worker]  # `receive` blocks if the worker stops in the middle of a message
        try:
            message = receive(worker.pipe)
        except (EOFError, OSError):
            self._handle_death(worker)
            return
        finally:
            self._awaited = []  # handling the message may take long
        worker.messages += 1
        self._handle_message(worker, message)

    def _handle_message(self, worker: WorkerProcess, message: Message) -> None:
        match message:
            case EncodedBlock():
                self._schedule.receive_block(worker, message)
            case Done():
                self._schedule.finish(worker)
                self._observer.add_fetched(message.fetched_bytes)
            case Failed():
                if not worker.ready:
                    raise message.error
                self._schedule.finish(worker, message.error)
            case Trying():
                self._schedule.announce(worker, message.document)
            case Ready():
                worker.ready = True
                self._pool.note_ready()
            case Waiting():
                worker.waiting = message.reason
                self._pool.report_network_wait()
            case Event():
                self._observer.tell(message)
            case Alive():
                pass

    def _handle_death(self, worker: WorkerProcess) -> None:
        """Report a dead worker and take back its batches. `encode` starts its replacement."""
        death = worker.explain_end()
        if not worker.ready:
            self._pool.note_early_death(death)
        self._observer.tell(Event("worker", f"worker {worker.pid} {death.description}; replaced"))
        end_all = self._schedule.note_death(worker, death)
        self._end(worker)
        if end_all:
            for other in list(self._workers):
                self._end(other)

    def _end(self, worker: WorkerProcess) -> None:
        """End a worker, and take back its batches for other workers."""
        self._pool.remove(worker)
        self._schedule.remove_worker(worker)
        if worker.waiting is not None:
            self._pool.report_network_wait()
