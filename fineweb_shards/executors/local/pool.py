"""Start, watch and end worker processes, and find out how they died.

An exit code, or a signal that a process causes itself (SIGSEGV, SIGABRT …), is a crash. SIGKILL and all other signals
come from outside: from a person, a scheduler, or the kernel's OOM killer, which is recognized by the kernel's count of
OOM kills.

The watchdog kills workers that have work but do nothing, such as deadlocked or stopped ones (docs/architecture.md). It
has a separate thread, because such a worker may block the executor in the middle of a message.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing import resource_tracker
from typing import Any

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.local.worker import OUT_OF_MEMORY_EXIT_CODE, THREAD_FAILED_EXIT_CODE, run_worker
from fineweb_shards.executors.task import Death, DeathKind
from fineweb_shards.system.background import in_background
from fineweb_shards.system.machine import environment, oom_kills, process_life
from fineweb_shards.system.retry import Clock
from fineweb_shards.units import show_seconds

# Workers do no linear algebra, but NumPy would start a thread per core in each of them, which spins for a while: 20 ms
# of processor time on two cores. Set only while a worker starts, so that a command run after the build is unaffected.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

_OWN_NAMES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGXCPU")
_OWN_SIGNALS = {getattr(signal, name, None) for name in _OWN_NAMES}

WATCH_EVERY_SECONDS = 1.0
# No message, and almost no processor time used.
STUCK_SECONDS = 600.0
_NEGLIGIBLE_SECONDS = 0.1
# No message for this much processor time (wall time if that is unknown): a thousand times what a batch takes.
ENDLESS_SECONDS = 3600.0
# States of a process that waits for a disk (D), runs or waits for a core (R), or is being debugged (t).
_ACTIVE_STATES = "DRt"


class WorkerProcess:
    """The parent's view of a process that runs `run_worker` and gets `spec`, a pickled WorkerSpec."""

    def __init__(self, spec: bytes) -> None:
        self.ready = False
        self.leaving = False  # it gets no more work, and is ended once idle
        self.messages = 0  # received from it
        self._killed_as: Death | None = None  # set if the watchdog killed it
        self._oom_kills_before = oom_kills()
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(worker_pipe,), name="fineweb-shards worker", daemon=True
        )
        with _signals_deferred(), environment(_ONE_THREAD):
            self._process.start()
        worker_pipe.close()
        self.pid = self._process.pid or 0
        self.sentinel = self._process.sentinel  # becomes ready when the process has ended
        # Not as an argument, and not in this thread: a spec with thousands of files does not fit into a pipe, so each
        # start would block until the worker reads it, a second later. Orders can't overtake it: they wait until the
        # worker is ready.
        self._handover = in_background(lambda: self.pipe.send_bytes(spec))

    def kill(self) -> None:
        self._process.kill()  # without waiting for the end

    def join(self) -> None:
        """Wait until the process has ended, and close the pipe."""
        self._process.join()
        futures.wait([self._handover])  # it fails if the process ended before reading everything
        self.pipe.close()

    def kill_stuck(self, reason: str, *, stopped: bool) -> None:
        """Kill the process because it does nothing; its document is not suspected if it was `stopped` (SIGSTOP)."""
        self._killed_as = Death(DeathKind.KILLED if stopped else DeathKind.STUCK, f"{reason} and was killed")
        self._process.kill()

    def note_order(self) -> None:
        """Remember the kernel's count of OOM kills: if it has grown when the worker dies, that is the cause."""
        self._oom_kills_before = oom_kills()

    def explain_end(self) -> Death:
        """Wait until the process has ended, and return how it died."""
        self._process.join()
        if self._killed_as is not None:
            return self._killed_as
        code = self._process.exitcode
        if code == OUT_OF_MEMORY_EXIT_CODE:
            return Death(DeathKind.OUT_OF_MEMORY, "ran out of memory")
        if code == THREAD_FAILED_EXIT_CODE:
            return Death(DeathKind.CRASHED, "ended because one of its threads failed")
        if code is None or code >= 0:
            return Death(DeathKind.CRASHED, f"ended with exit code {code}")
        if -code == getattr(signal, "SIGKILL", None) and oom_kills() > self._oom_kills_before:
            return Death(DeathKind.OUT_OF_MEMORY, "was killed by the kernel, which was out of memory")
        kind = DeathKind.CRASHED if -code in _OWN_SIGNALS else DeathKind.KILLED
        return Death(kind, f"was killed by signal {-code}")


class WorkerActivity:
    """Measures how long a worker has sent no message and used no processor time."""

    def __init__(self) -> None:
        self._messages = -1
        self._used = 0.0  # seconds of processor time
        self._silent_from = self._idle_from = self._idle_seconds = 0.0

    def look(self, messages: int, life: tuple[str, float] | None, passed_seconds: float) -> str | None:
        """Return what is wrong with the worker, or None. `life` is its state and processor time, if known."""
        state, self._used = life or ("R", self._used + passed_seconds)  # unknown: as if it worked all the time
        is_active = state in _ACTIVE_STATES or self._used - self._idle_from > _NEGLIGIBLE_SECONDS
        if messages != self._messages:
            self._messages, self._silent_from, is_active = messages, self._used, True
        self._idle_seconds += passed_seconds
        if is_active:
            self._idle_seconds, self._idle_from = 0.0, self._used
        if self._idle_seconds >= STUCK_SECONDS:
            stopped = " (it is stopped)" if state == "T" else ""
            return f"did nothing for {show_seconds(self._idle_seconds)}{stopped}"
        if (silent_seconds := self._used - self._silent_from) >= ENDLESS_SECONDS:
            return f"worked on one piece of text for {show_seconds(silent_seconds)}"
        return None


class Watchdog:
    """Watches workers from `start` to `stop`. `get_watched` returns those that should respond now."""

    def __init__(
        self, get_watched: Callable[[], Sequence[WorkerProcess]], observer: Observer, clock: Clock | None = None
    ) -> None:
        self._get_watched, self._observer = get_watched, observer
        self._clock = clock or Clock()
        self._activities: dict[WorkerProcess, WorkerActivity] = {}
        self._last_look = self._clock.now()
        self._reported: set[str] = set()  # errors of the watchdog itself
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_EVERY_SECONDS):
            try:
                self.look()
            except BaseException as error:  # report it once: the next look may succeed
                failure = f"the watchdog of the workers failed: {type(error).__name__}: {error}"
                if failure not in self._reported:
                    self._reported.add(failure)
                    self._observer.tell(Event("worker", failure))

    def look(self) -> None:
        """Check each watched worker once and kill those that do nothing."""
        now = self._clock.now()
        passed = min(now - self._last_look, 2 * WATCH_EVERY_SECONDS)
        self._last_look = now
        known = self._activities
        self._activities = {one: known.get(one) or WorkerActivity() for one in self._get_watched()}
        for worker, activity in self._activities.items():
            life = process_life(worker.pid)
            reason = activity.look(worker.messages, life, passed)
            if reason is not None:
                worker.kill_stuck(reason, stopped=life is not None and life[0] == "T")


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Block SIGINT, SIGHUP and SIGTERM, in the parent and in the process it starts. Ctrl-C and a closed terminal signal
    the whole process group, but the parent decides what to do. The process inherits the mask, so that not even the
    start of its Python is interrupted; it unblocks SIGTERM later. The parent gets its signals afterwards: a child that
    has received only half of its data would print a traceback."""
    received: list[int] = []
    handlers: dict[int, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        resource_tracker.ensure_running()  # otherwise the first `start` does it, and resets the mask
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        # Python's handlers run in the main thread even if another thread, which does not block it, gets the signal.
        if threading.current_thread() is threading.main_thread():
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(handler := signal.getsignal(one)):
                    handlers[one] = handler
                    signal.signal(one, lambda number, frame: received.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
