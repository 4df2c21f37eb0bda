"""The supervisor: a pool of worker processes on this machine.

Batches are dispatched in order, finish in any order and come out in order. What is in flight is bounded
in bytes. A worker that dies is replaced and its batches are done again: `multiprocessing.Pool`
would hang for ever then (cpython#66587, #96062), `ProcessPoolExecutor` would lose the whole pool.
Every worker has a private pipe, because a shared queue's lock dies with its holder (cpython#88304).

Everything happens in the caller's thread, inside `encode`: while the caller is busy writing, nothing is
received, workers wait in their pipes, and memory stays where it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.producer import Producer
from fineweb_shards.executors.worker import Done, Ready, Waiting, WorkerSpec, receive, run_worker
from fineweb_shards.outage import Tell
from fineweb_shards.types import Batch, EncodedBlock

MAXIMUM_DEATHS = 3  # of workers, over one batch
# A worker gets its next batch before it has finished the last, so that it never waits for us. A batch
# that carries its text is only sent to a worker that is waiting for it, or both could block.
_QUEUED_REFERENCES = 2
_QUEUED_TEXTS = 1


@dataclass(eq=False)
class _Task:
    """A batch on its way: what has come of it so far."""

    batch: Batch
    blocks: deque[EncodedBlock] = field(default_factory=deque)
    received: int = 0
    drop: int = 0  # blocks to ignore, because a worker that died had sent them already
    deaths: int = 0
    done: bool = False
    error: ShardError | None = None


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: connection.Connection
    tasks: deque[_Task] = field(default_factory=deque)
    ready: bool = False


class LocalExecutor:
    """Worker processes for one run. A context manager: they end with it."""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        window_bytes: int,
    ) -> None:
        self._spec = spec
        self._count = workers
        self._window_bytes = window_bytes
        self._notify: Callable[[str], None] = lambda _: None
        self._tell_wait: Tell = lambda _: None
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._tasks: deque[_Task] = deque()  # in order; the first is the one to come out next
        self._again: deque[_Task] = deque()  # their worker died
        self._early_deaths = 0
        by_value = any(file.by_value for file in spec.source.files)
        self._depth = _QUEUED_TEXTS if by_value else _QUEUED_REFERENCES

    def __enter__(self) -> LocalExecutor:
        self._workers = [self._start_worker() for _ in range(self._count)]
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def tell_waits_to(self, tell: Tell) -> None:
        """Where to say that a worker waits for the network (None: no longer)."""
        self._tell_wait = tell

    def encode(self, batches: Iterator[Batch], notify: Callable[[str], None]) -> Iterator[EncodedBlock]:
        """The blocks of all batches, in the batches' order; `notify` is told of accidents."""
        self._notify = notify
        producer = Producer(batches, ahead=2 * self._count)
        try:
            while True:
                hungry = self._dispatch(producer)
                if self._tasks and (self._tasks[0].blocks or self._tasks[0].done):
                    yield from self._take_first()
                elif not self._tasks and producer.ended:
                    if producer.failure is not None:
                        raise producer.failure
                    return
                else:
                    self._wait([producer.wakeup] if hungry else [])
        finally:
            producer.stop()

    def _take_first(self) -> Iterator[EncodedBlock]:
        """What has come of the first batch. Its error, if it has one, is raised in its turn, so that
        everything in front of it is packed first."""
        task = self._tasks[0]
        while task.blocks:
            yield task.blocks.popleft()
        if task.done:
            self._tasks.popleft()
            if task.error is not None:
                raise task.error

    def _dispatch(self, producer: Producer) -> bool:
        """Give work to every worker that has room for it; whether only a batch to give was missing."""
        while (worker := self._idlest()) is not None:
            if self._again:
                self._assign(worker, self._again.popleft())
                continue
            if producer.ended or not self._window_has_room():
                return False
            batch = producer.take()
            if batch is None:
                return not producer.ended
            task = _Task(batch)
            self._tasks.append(task)
            self._assign(worker, task)
        return False

    def _idlest(self) -> _Worker | None:
        ready = [worker for worker in self._workers if worker.ready]
        worker = min(ready, key=lambda one: len(one.tasks), default=None)
        return worker if worker is not None and len(worker.tasks) < self._depth else None

    def _window_has_room(self) -> bool:
        in_flight = sum(task.batch.size_bytes for task in self._tasks)
        return not self._tasks or in_flight < self._window_bytes

    def _assign(self, worker: _Worker, task: _Task) -> None:
        worker.tasks.append(task)
        try:
            worker.pipe.send(task.batch)
        except OSError:  # it has died; _wait will find out and see to the task
            return

    def _wait(self, bells: list[connection.Connection]) -> None:
        """Until something happens, then see to it. A bell only has to end the wait."""
        pipes = {worker.pipe: worker for worker in self._workers if self._may_receive(worker)}
        deaths = {worker.process.sentinel: worker for worker in self._workers}
        for happened in connection.wait([*pipes, *deaths, *bells]):
            if isinstance(happened, connection.Connection) and happened in pipes:
                self._receive(pipes[happened])
            elif isinstance(happened, int) and deaths[happened] in self._workers:  # not buried yet
                worker = deaths[happened]
                if worker.pipe not in pipes or not worker.pipe.poll():  # its last words come first
                    self._bury(worker)

    def _may_receive(self, worker: _Worker) -> bool:
        """Not from a worker that is ahead of the others, once enough is waiting already."""
        if not self._tasks or self._tasks[0] in worker.tasks or not worker.tasks:
            return True
        waiting = sum(len(block.tokens) * 2 for task in self._tasks for block in task.blocks)
        return waiting < self._window_bytes

    def _receive(self, worker: _Worker) -> None:
        try:
            message = receive(worker.pipe)
        except (EOFError, OSError):
            self._bury(worker)
            return
        if isinstance(message, Waiting):
            self._tell_wait(message.reason)
        elif isinstance(message, Ready):
            worker.ready = True
            self._early_deaths = 0
        elif isinstance(message, EncodedBlock):
            task = worker.tasks[0]
            if task.drop:
                task.drop -= 1
            else:
                task.received += 1
                task.blocks.append(message)
        elif isinstance(message, Done):
            worker.tasks.popleft().done = True
        elif not worker.ready:
            raise message.error
        else:
            task = worker.tasks.popleft()
            task.error, task.done = message.error, True

    def _bury(self, worker: _Worker) -> None:
        """Replace a worker that has died, and do its batches again."""
        worker.process.join()
        worker.pipe.close()
        cause = _describe_exit(worker.process.exitcode)
        if not worker.ready:
            self._early_deaths += 1
            if self._early_deaths >= MAXIMUM_DEATHS:
                raise WorkerError(f"Workers end before they begin: the last one {cause}.")
        if worker.tasks:
            worker.tasks[0].deaths += 1
        for task in reversed(worker.tasks):
            task.drop = task.received
            if task.deaths < MAXIMUM_DEATHS:
                self._again.appendleft(task)
                continue
            file = self._spec.source.files[task.batch.file]
            task.error, task.done = (
                WorkerError(
                    f"{file.path}: the batch at position {task.batch.position} ended {task.deaths} workers; "
                    f"the last one {cause}."
                ),
                True,
            )
        self._notify(f"worker {worker.process.pid} {cause}; replaced")
        self._workers[self._workers.index(worker)] = self._start_worker()

    def _start_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker, args=(theirs, self._spec), name="fineweb-shards worker", daemon=True
        )
        with _interrupts_held_back():
            process.start()
        theirs.close()
        return _Worker(process, ours)


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


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
