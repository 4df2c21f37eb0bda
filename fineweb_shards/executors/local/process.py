"""Represent a worker process in its parent: start it, kill it, and find out how it died."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from multiprocessing import resource_tracker

from fineweb_shards.executors.exit_cause import Death, DeathKind, explain_exit
from fineweb_shards.executors.local.worker import run_worker
from fineweb_shards.system.background import in_background
from fineweb_shards.system.machine import oom_kills

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class WorkerProcess:
    """A process that runs `run_worker`. Constructing it starts it. `spec` is a pickled WorkerSpec."""

    def __init__(self, spec: bytes) -> None:
        self.ready = False
        self.leaving = False  # it gets no more work, and is ended when it has none
        self.waits: dict[str, str] = {}  # why it waits for the network or the disk: cause to reason
        self.messages = 0  # number of messages received from it
        self._killed_as: Death | None = None  # set if the watchdog killed it
        self._oom_kills_before = oom_kills()
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(worker_pipe,), name="fineweb-shards worker", daemon=True
        )
        with _signals_blocked(), _one_thread_for_blas():
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


@contextlib.contextmanager
def _one_thread_for_blas() -> Iterator[None]:
    """Start the process with one thread for linear algebra, of which it does none. NumPy would start one for
    every core in every worker, and they spin for a while: 20 ms of processor time on two cores.

    Only while it starts: a command that runs after the build is none of our business.
    """
    if _BLAS_THREADS in os.environ:  # somebody has decided
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_BLAS_THREADS, None)


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
