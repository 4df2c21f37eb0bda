"""Run a schedule with worker processes on this machine: send orders, receive messages, replace workers.

A worker that dies is replaced, and its batches are encoded again: `multiprocessing.Pool` would hang forever
(cpython#66587, #96062), and `ProcessPoolExecutor` would lose the whole pool. Every worker has a separate pipe, because
the lock of a shared queue is never released if its holder dies (cpython#88304).

Everything except the watchdog happens in the caller's thread, inside `encode` and `wait`. Workers keep the tokens and
write them on order; none pass through here. While the caller is busy, workers finish the batches they have, which the
window bounds. While the machine is short of memory (memory_guard.py), no work is given out; if that is not enough,
workers are ended until the shortage is over. schedule.py decides which worker gets what.
"""

from __future__ import annotations

import pickle
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from typing import Any

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors import messages
from fineweb_shards.executors.base import Result, Writes, write_at_once
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.pool import Watchdog, WorkerProcess
from fineweb_shards.executors.local.worker import Order, send_order
from fineweb_shards.executors.messages import FileResult, FileWork, WorkOrder
from fineweb_shards.executors.scheduled_executor import BATCHES, REMOTE_BATCHES, ScheduledExecutor
from fineweb_shards.executors.task import DeathCount, FileTasks
from fineweb_shards.system.memory_guard import LOOK_EVERY_SECONDS, Advice, MemoryGuard
from fineweb_shards.types import HeldTokens, Placement, Quarantined, Tokens
from fineweb_shards.units import show_bytes


class LocalExecutor(ScheduledExecutor[WorkerProcess]):
    """Tokenizes with worker processes. `quarantined` are documents that earlier runs left out."""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        window_bytes: int,
        guard: MemoryGuard,
        quarantined: Iterable[Quarantined] = (),
        observer: Observer | None = None,
    ) -> None:
        queued = REMOTE_BATCHES if spec.source.is_remote else BATCHES
        super().__init__(spec, window_bytes, queued, quarantined, observer)
        self._count = workers
        self._ahead = 2 * workers
        self._guard = guard
        self._pickled_spec = pickle.dumps(spec)  # once for all workers
        self._workers: list[WorkerProcess] = []
        # For the pipes and sentinels of workers, each registered once: `multiprocessing.connection.wait` registers all
        # of them again at each call, which with 64 workers takes longer than handling the message.
        self._selector = selectors.DefaultSelector()
        self._early_deaths = DeathCount()  # in a row, of workers that were not ready yet
        self._watchdog = Watchdog(self._get_watched, self._observer)
        self._listening = False  # waiting for messages; False: the caller is busy
        self._blocked_by: WorkerProcess | None = None  # in the middle of a message to or from this worker
        self._files: FileTasks[WorkerProcess] = FileTasks()
        self._writer = spec.make_writer(self._observer)  # for tokens at seams, which this process has
        self._wakeup, self._wakeup_sender = Pipe(duplex=False)  # has a byte for each listed batch
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def _start(self) -> None:
        self._fill(self._count)
        self._watchdog.start()

    def __exit__(self, *exception: object) -> None:
        self._watchdog.stop()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        self._selector.close()
        self._writer.close()

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def used_bytes(self) -> int:
        return self._guard.used_bytes

    @property
    def peak_bytes(self) -> int:
        return self._guard.peak_bytes

    def _wake(self) -> None:
        self._wakeup_sender.send_bytes(b"!")

    def place(self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True) -> Writes:
        if not isinstance(tokens, HeldTokens):
            return write_at_once(self._writer, tokens, placements)
        order, worker, futures = self._schedule.place(tokens, placements, last=last)
        if worker is not None:
            self._send(worker, order)
        return futures

    def _finish_file(self, work: FileWork) -> Future[Any]:
        return self._files.add(work)  # `_give_out` sends it

    def _give_out(self) -> None:
        """End workers as the memory guard advises, replace missing ones if memory allows it, and assign work."""
        self._follow_memory_advice()
        schedule = self._schedule
        self._fill(1 if schedule.tries_alone else self._count)
        for worker, file_order in self._files.give_out(worker for worker in self._workers if worker.ready):
            self._send(worker, file_order)
        while not self._guard.shortage and (schedule.next_pending is not None or self._next_lane() is not None):
            available = (worker for worker in self._workers if worker.ready and not worker.leaving)
            least_busy = schedule.least_busy(available)
            if least_busy is None or (schedule.next_pending is None and not self._take_batch()):
                return
            order = schedule.give_next(least_busy)
            if order is None:
                return
            self._send(least_busy, order)

    def _follow_memory_advice(self) -> None:
        """Pause or continue as the memory guard advises, and end workers. One that has grown beyond its share gets no
        more batches, and is ended once it is not needed."""
        before = self._guard.shortage
        advice = self._guard.look([worker.pid for worker in self._workers])
        shortage = self._guard.shortage
        if shortage and not before:
            self._observer.set_wait("memory", f"paused for memory since {time.strftime('%H:%M')}: {shortage}")
        elif before and not shortage:
            self._observer.set_wait("memory", None)
        if advice is not None:
            largest = max(self._workers, key=lambda worker: self._guard.size_bytes(worker.pid))
            if advice is Advice.RETIRE:
                self._retire(largest, "memory stays short")
            else:
                largest.leaving = True
        for worker in [one for one in self._workers if one.leaving]:
            if not self._schedule.keeps_any(worker) and not self._files.count(worker):
                self._retire(worker, "it had grown beyond its share of the memory budget")

    def _retire(self, worker: WorkerProcess, why: str) -> None:
        size = show_bytes(self._guard.size_bytes(worker.pid))
        self._observer.tell(Event("memory", f"worker {worker.pid} ({size}) was ended: {why}"))
        self._end(worker)

    def _fill(self, count: int) -> None:
        """Start workers until there are `count`, unless memory is short."""
        while len(self._workers) < count and not self._guard.shortage:
            worker = WorkerProcess(self._pickled_spec)
            self._workers.append(worker)
            for waitable in (worker.pipe, worker.sentinel):
                self._selector.register(waitable, selectors.EVENT_READ, worker)

    def _send(self, worker: WorkerProcess, order: Order) -> None:
        if isinstance(order, WorkOrder) and order.one_by_one:
            worker.note_order()
        self._exchange(worker, partial(send_order, worker.pipe, order, worker.pid))  # `_listen` notices if it has died

    def _exchange(self, worker: WorkerProcess, action: Callable[[], Result]) -> Result | None:
        """Send or receive a message; None if the worker has died."""
        self._blocked_by = worker  # `action` blocks if the worker stops in the middle of the message
        try:
            return action()
        except (EOFError, OSError):
            return None
        except BaseException:  # perhaps interrupted in the middle of the message
            self._end(worker)
            raise
        finally:
            self._blocked_by = None

    def _listen(self) -> None:
        """Wait for messages and deaths of workers, for the next batch, or for the guard's next look."""
        self._listening = True
        happened = self._selector.select(LOOK_EVERY_SECONDS)
        self._listening = False
        for key, _ in happened:
            worker: WorkerProcess | None = key.data
            if worker is None:
                self._wakeup.recv_bytes()  # the batch itself is taken by `_give_out`
            elif worker.pipe.closed:
                continue  # an earlier event ended it
            elif key.fileobj is worker.pipe:
                self._receive(worker)
            elif not worker.pipe.poll():  # receive the messages it sent before its death first
                self._handle_death(worker)

    def _get_watched(self) -> list[WorkerProcess]:
        """Return the workers that should respond now. The watchdog's thread calls this."""
        blocked_by = self._blocked_by
        if blocked_by is not None or not self._listening:
            return [blocked_by] if blocked_by is not None else []
        return [
            worker  # has work or is still starting, and waits for neither network nor disk
            for worker in self._workers[:]
            if (self._schedule.has_work(worker) or self._files.count(worker) > 0 or not worker.ready)
            and not self._waits.waits(worker)
        ]

    def _receive(self, worker: WorkerProcess) -> None:
        message: messages.Message | None = self._exchange(worker, worker.pipe.recv)
        if message is None:
            self._handle_death(worker)
            return
        worker.messages += 1
        match message:
            case messages.Encoded():
                order = self._schedule.receive_block(worker, message.index, message.block)
                if order is not None:
                    self._send(worker, order)
            case messages.Written():
                if message.error is not None:
                    self._schedule.fail_write(message.batch, message.block, message.error)
                    raise message.error
                if message.placements:
                    self._schedule.note_written(worker, message.batch, message.block)
                if message.dropped:
                    self._schedule.note_dropped(worker, message.batch, message.block)
            case messages.Done():
                if message.error is not None and not worker.ready:
                    raise message.error
                self._schedule.finish(worker, message.error)
                self._observer.add_fetched(message.fetched_bytes)
            case FileResult():
                self._files.finish(message)
            case Quarantined():
                self._schedule.announce(worker, message)
            case messages.Signal.READY:
                worker.ready = True
                self._early_deaths = DeathCount()
            case messages.Waiting():
                self._waits.note(worker, message.cause, message.reason)
            case Event():
                self._observer.tell(message)
            case messages.Signal.ALIVE:
                pass

    def _handle_death(self, worker: WorkerProcess) -> None:
        """Report a dead worker and take back its work. `_give_out` starts its replacement."""
        death = worker.explain_end()
        if not worker.ready and self._early_deaths.add(death):
            raise WorkerError(f"Workers die before they are ready: the last one {death.description}.")
        self._observer.tell(Event("worker", f"worker {worker.pid} {death.description}; replaced"))
        try:
            self._files.remove_worker(worker, death)
            end_all = self._schedule.note_death(worker, death)
        finally:  # even if the run ends now: the other workers still seal finished files
            self._end(worker)
        if end_all:
            for other in list(self._workers):
                self._end(other)

    def _end(self, worker: WorkerProcess) -> None:
        """Kill a worker and take back its work."""
        for waitable in (worker.pipe, worker.sentinel):  # while they are open
            self._selector.unregister(waitable)
        worker.kill()
        worker.join()
        self._workers.remove(worker)
        self._schedule.remove_worker(worker)
        self._files.remove_worker(worker)
        self._waits.end(worker)
