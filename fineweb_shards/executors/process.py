"""One worker process as the supervisor sees it: its pipe, the batches it has, and how it ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from multiprocessing import resource_tracker

from fineweb_shards.executors.task import Task
from fineweb_shards.executors.worker import OUT_OF_MEMORY_EXIT_CODE, WorkerSpec, run_worker


class WorkerProcess:
    """Started by making it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.tasks: deque[Task] = deque()
        self.ready = False
        self.leaving = False  # gets no more work
        self.waiting: str | None = None  # for the network
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

    def describe_end(self) -> str:
        """How it ended, as the end of a sentence that begins with the worker."""
        self._process.join()
        code = self._process.exitcode
        if code == OUT_OF_MEMORY_EXIT_CODE:
            return "ran out of memory"
        if code is not None and code < 0:
            return f"was killed by signal {-code}"
        return f"ended with exit code {code}"


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started in here never sees Ctrl-C, which reaches the whole group: the parent decides.

    The mask is inherited, so not even the start of its Python can be interrupted. A Ctrl-C of this
    moment reaches the parent afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows: the worker itself ignores it, a little later
        yield
        return
    resource_tracker.ensure_running()  # or the first start of a process would do it, and lift our mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
