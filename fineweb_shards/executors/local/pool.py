"""Keep the worker processes of a run: start them, listen to them, find out how they died, and end them.

What they work on is decided in schedule.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from multiprocessing import connection, resource_tracker

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.worker import run_worker
from fineweb_shards.executors.worker_death import Death, DeathCount, DeathKind, explain_exit
from fineweb_shards.system.background import in_background
from fineweb_shards.system.machine import environment, oom_kills
from fineweb_shards.system.memory_guard import Advice, MemoryGuard
from fineweb_shards.units import show_bytes

Waitable = connection.Connection | int  # a pipe, or the sentinel of a process
# Workers do no linear algebra. NumPy would start a thread for every core in every worker, and they spin for a
# while: 20 ms of processor time on two cores. Only set while a worker starts: a command that runs after the
# build is none of our business.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class WorkerProcess:
    """A process that runs `run_worker`, as its parent sees it. Constructing it starts it. `spec` is a pickled
    WorkerSpec."""

    def __init__(self, spec: bytes) -> None:
        self.ready = False
        self.leaving = False  # it gets no more work, and is ended when it has none
        self.messages = 0  # number of messages received from it
        self._killed_as: Death | None = None  # set if the watchdog killed it
        self._oom_kills_before = oom_kills()
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(worker_pipe,), name="fineweb-shards worker", daemon=True
        )
        with _signals_blocked(), environment(_ONE_THREAD):
            self._process.start()
        worker_pipe.close()
        # Not as an argument, and not in this thread: thousands of files don't fit into a pipe, so that each
        # start would wait until the process before it reads, a second later. No order can overtake it: orders
        # wait until the worker is ready.
        self._handover = in_background(lambda: self.pipe.send_bytes(spec))

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """A handle for `connection.wait` that becomes ready when the process has ended."""
        return self._process.sentinel

    def kill(self) -> None:
        """Send SIGKILL, without waiting for the end."""
        self._process.kill()

    def join(self) -> None:
        """Wait until the process has ended, and close the pipe."""
        self._process.join()
        futures.wait([self._handover])  # if it failed, the process ended before it had read all
        self.pipe.close()

    def kill_stuck(self, reason: str, *, stopped: bool) -> None:
        """Kill the process because it does nothing any more. May be called from any thread.

        `stopped` says that it was stopped from outside (SIGSTOP): then its document is not suspected.
        """
        self._killed_as = Death(DeathKind.KILLED if stopped else DeathKind.STUCK, f"{reason} and was killed")
        self._process.kill()

    def note_order(self) -> None:
        """Remember the kernel's count of OOM kills: if it grows until the worker dies, that is the cause."""
        self._oom_kills_before = oom_kills()

    def explain_end(self) -> Death:
        """Wait until the process has ended, and return how it died."""
        self._process.join()
        if self._killed_as is not None:
            return self._killed_as
        return explain_exit(self._process.exitcode, oom_killed=oom_kills() > self._oom_kills_before)


class Mailbox:
    """Everything that is listened to: messages and deaths of workers, and other wake-ups.

    `multiprocessing.connection.wait` registers every pipe again at each call; with 64 workers that takes
    longer than handling the message. Where the operating system has a better way, pipes are registered once.
    """

    def __init__(self) -> None:
        self._waitables: list[Waitable] = []
        # Windows can only select sockets.
        self._selector = selectors.DefaultSelector() if sys.platform != "win32" else None

    def add(self, *waitables: Waitable) -> None:
        """Listen to pipes and processes."""
        for waitable in waitables:
            self._waitables.append(waitable)
            if self._selector is not None:
                self._selector.register(waitable, selectors.EVENT_READ)

    def remove(self, *waitables: Waitable) -> None:
        """Listen to them no longer. They must still be open."""
        for waitable in waitables:
            self._waitables.remove(waitable)
            if self._selector is not None:
                self._selector.unregister(waitable)

    def wait(self, timeout_seconds: float) -> Iterable[object]:
        """Return what is ready, after the time limit perhaps nothing."""
        if self._selector is None:
            return connection.wait(self._waitables, timeout_seconds)
        return [key.fileobj for key, _ in self._selector.select(timeout_seconds)]

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()


class WorkerPool:
    """Starts and ends workers, as the memory guard advises."""

    def __init__(self, spec: WorkerSpec, guard: MemoryGuard, observer: Observer) -> None:
        self.workers: list[WorkerProcess] = []
        self.mailbox = Mailbox()
        self.senders: dict[object, WorkerProcess] = {}  # by pipe, and by sentinel
        self.paused = False  # memory is short
        self._observer = observer
        self._spec = pickle.dumps(spec)  # once for all workers
        self._guard = guard
        self._early_deaths = DeathCount()

    def fill(self, count: int) -> None:
        """Start workers until there are `count`, unless memory is short."""
        while len(self.workers) < count and not self.paused:
            worker = WorkerProcess(self._spec)
            self.workers.append(worker)
            self.senders |= {worker.pipe: worker, worker.sentinel: worker}
            self.mailbox.add(worker.pipe, worker.sentinel)

    def remove(self, worker: WorkerProcess) -> None:
        """Kill a worker and remove it from the pool."""
        self.mailbox.remove(worker.pipe, worker.sentinel)
        del self.senders[worker.pipe], self.senders[worker.sentinel]
        worker.kill()
        worker.join()
        self.workers.remove(worker)

    def stop(self) -> None:
        """Kill all workers, and wait until they have ended."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        self.mailbox.close()

    @property
    def available(self) -> list[WorkerProcess]:
        """The workers that may be given work."""
        return [worker for worker in self.workers if worker.ready and not worker.leaving]

    def apply_memory_advice(self, is_needed: Callable[[WorkerProcess], bool]) -> Iterator[WorkerProcess]:
        """Pause or continue as the memory guard says; yield the workers that the caller has to end.

        A worker that has grown beyond its share gets no more batches, and is yielded once nothing of it is
        needed.
        """
        was_paused = self.paused
        advice = self._guard.look([worker.pid for worker in self.workers])
        self.paused = self._guard.shortage is not None
        if self.paused and not was_paused:
            since = time.strftime("%H:%M")
            self._observer.set_wait("memory", f"paused for memory since {since}: {self._guard.shortage}")
        elif was_paused and not self.paused:
            self._observer.set_wait("memory", None)
        if advice is Advice.RETIRE:
            yield self._retire(self._largest(), "memory stays short")
        elif advice is Advice.RENEW:
            self._largest().leaving = True
        for worker in [one for one in self.workers if one.leaving and not is_needed(one)]:
            yield self._retire(worker, "it had grown beyond its share of the memory budget")

    def note_ready(self) -> None:
        """Reset the count of early deaths, because a worker has started successfully."""
        self._early_deaths = DeathCount()

    def note_early_death(self, death: Death) -> None:
        """Count a worker that died before it was ready; raise WorkerError after several in a row."""
        if self._early_deaths.add(death):
            raise WorkerError(f"Workers die before they are ready: the last one {death.description}.")

    def _largest(self) -> WorkerProcess:
        return max(self.workers, key=lambda worker: self._guard.size_bytes(worker.pid))

    def _retire(self, worker: WorkerProcess, why: str) -> WorkerProcess:
        """Report that a worker is ended because of memory, and return it."""
        size = show_bytes(self._guard.size_bytes(worker.pid))
        self._observer.tell(Event("memory", f"worker {worker.pid} ({size}) was ended: {why}"))
        return worker


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT, SIGHUP and SIGTERM while a process is started, for the process and for the parent.

    Ctrl-C and a closed terminal signal the whole process group, but the parent decides what to do. The
    process inherits the mask, so that not even the start of its Python is interrupted; later it unblocks
    SIGTERM. The parent gets its signals afterwards: in the middle of the start they would leave a child that
    has only half of its data, and prints a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows: the worker ignores SIGINT a little later
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        resource_tracker.ensure_running()  # or the first `start` would do it, and reset the mask
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        with _handlers_deferred():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _handlers_deferred() -> Iterator[None]:
    """Defer Python's signal handlers, which run in this thread even if a signal reaches another thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, frame: numbers.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for held_back in numbers:
            signal.raise_signal(held_back)
