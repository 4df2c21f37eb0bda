"""One worker process as its parent sees it: its pipe, what it said of itself, and how it ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

from fineweb_shards.executors.death import Death, DeathKind, explain_exit
from fineweb_shards.executors.local.worker import run_worker
from fineweb_shards.executors.work import WorkerSpec
from fineweb_shards.system.machine import oom_kills


class WorkerProcess:
    """A process that runs `run_worker`; making the object starts it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.ready = False
        self.leaving = False  # gets no more work
        self.waiting: str | None = None  # for the network
        self.messages = 0  # that have come from it
        self._fault: Death | None = None  # why we killed it ourselves
        self._oom_kills_before = oom_kills()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(theirs, spec), name="fineweb-shards worker", daemon=True
        )
        with _interrupts_held_back():
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """What becomes ready when the process has ended."""
        return self._process.sentinel

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        """Wait for its end, and let go of its pipe."""
        self._process.join()
        self.pipe.close()

    def kill_stuck(self, fault: str, *, blameless: bool) -> None:
        """Kill it because it does nothing any more. From any thread."""
        self._fault = Death(DeathKind.KILLED if blameless else DeathKind.STUCK, f"{fault} and was killed")
        self._process.kill()

    def note_order(self) -> None:
        """Count the kernel's kills for want of memory from now on: it gets an order, and may be one."""
        self._oom_kills_before = oom_kills()

    def explain_end(self) -> Death:
        """Wait for its end, and tell whose doing it was."""
        self._process.join()
        if self._fault is not None:
            return self._fault
        return explain_exit(self._process.exitcode, oom_killed=oom_kills() > self._oom_kills_before)


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started in here sees neither Ctrl-C nor a closed terminal: both reach the whole group, and
    the parent decides.

    The mask is inherited, so not even the start of its Python can be interrupted. A signal of this moment
    reaches the parent afterwards: in between it would leave a child with half of its orders, and a traceback.
    SIGTERM is for a worker, too, once it runs.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows: the worker itself ignores it, a little later
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        resource_tracker.ensure_running()  # or the first start of a process would do it, and lift our mask
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        with _handlers_held_back():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _handlers_held_back() -> Iterator[None]:
    """The mask is this thread's only: a signal that reaches another one is still handled in this one."""
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
