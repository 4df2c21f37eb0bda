"""The supervisor: a pool of worker processes on this machine.

Batches are dispatched in order, finish in any order and come out in order. What is in flight is bounded
in bytes. A worker that dies is replaced and its batches are done again: `multiprocessing.Pool`
would hang for ever then (cpython#66587, #96062), `ProcessPoolExecutor` would lose the whole pool.
Every worker has a private pipe, because a shared queue's lock dies with its holder (cpython#88304).

Everything happens in the caller's thread, inside `encode`: while the caller is busy writing, nothing is
received, workers wait in their pipes, and memory stays where it is. When the machine is short of memory
(guard.py) no work is given out, and when that is not enough workers go, until it has passed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import connection

import numpy as np

from fineweb_shards.errors import WorkerError
from fineweb_shards.executors.messages import Done, Ready, Trying, Waiting, receive
from fineweb_shards.executors.process import WorkerProcess
from fineweb_shards.executors.producer import Producer
from fineweb_shards.executors.task import MAXIMUM_DEATHS, Task
from fineweb_shards.executors.worker import WorkerSpec
from fineweb_shards.guard import LOOK_EVERY_SECONDS, Advice, MemoryGuard
from fineweb_shards.observer import Event, Observer
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, Quarantined
from fineweb_shards.units import show_bytes

# So many documents ended their workers: then it is not the documents.
MAXIMUM_QUARANTINED = 100
# A worker gets its next batch before it has finished the last, so that it never waits for us. A batch
# that carries its text is only sent to a worker that is waiting for it, or both could block.
_QUEUED_REFERENCES = 2
_QUEUED_TEXTS = 1


class LocalExecutor:
    """Worker processes for one run. A context manager: they end with it."""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        window_bytes: int,
        guard: MemoryGuard,
        quarantined: Iterable[Quarantined] = (),
    ) -> None:
        self._spec = spec
        self._count = workers
        self._window_bytes = window_bytes
        self._guard = guard
        self._observer = Observer()
        self._workers: list[WorkerProcess] = []
        self._tasks: deque[Task] = deque()  # in order; the first is the one to come out next
        self._again: deque[Task] = deque()  # their worker is gone
        self._early_deaths = 0
        self._paused = False
        self._left_out: dict[int, frozenset[str]] = {}  # documents in quarantine, by file
        for document in quarantined:
            self._leave_out(document)
        self._lost = 0  # documents, in this run
        by_value = any(file.by_value for file in spec.source.files)
        self._depth = _QUEUED_TEXTS if by_value else _QUEUED_REFERENCES

    def __enter__(self) -> LocalExecutor:
        self._workers = [WorkerProcess(self._spec) for _ in range(self._count)]
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()

    def observe(self, observer: Observer) -> None:
        """Who is told of accidents and waits from now on."""
        self._observer = observer

    @property
    def workers(self) -> int:
        """How many are at work now."""
        return len(self._workers)

    def encode(self, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
        """The blocks of all batches, in the batches' order."""
        producer = Producer(batches, ahead=2 * self._count)
        try:
            while True:
                self._heed_memory()
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

    def _heed_memory(self) -> None:
        """Do what the guard says; start the workers that are missing once memory allows it."""
        was_paused = self._paused
        advice = self._guard.look([worker.pid for worker in self._workers])
        self._paused = self._guard.shortage is not None
        if self._paused and not was_paused:
            since = time.strftime("%H:%M")
            self._observer.wait("memory", f"paused for memory since {since}: {self._guard.shortage}")
        elif was_paused and not self._paused:
            self._observer.wait("memory", None)
        if advice is Advice.RETIRE:
            self._retire(self._largest(), "memory stays short")
        elif advice is Advice.RENEW:
            self._largest().leaving = True
        for worker in [one for one in self._workers if one.leaving and not one.tasks]:
            self._retire(worker, "it had grown beyond its share of the memory budget")
        if not self._paused:
            while len(self._workers) < self._count:
                self._workers.append(WorkerProcess(self._spec))

    def _largest(self) -> WorkerProcess:
        return max(self._workers, key=lambda worker: self._guard.size_bytes(worker.pid))

    def _retire(self, worker: WorkerProcess, why: str) -> None:
        """End a worker that has done nothing wrong."""
        size = show_bytes(self._guard.size_bytes(worker.pid))
        self._observer.tell(Event("memory", f"worker {worker.pid} ({size}) was ended: {why}"))
        self._end(worker)

    def _take_first(self) -> Iterator[EncodedBlock]:
        """What has come of the first batch. Its error, if it has one, is raised in its turn, so that
        everything in front of it is packed first."""
        task = self._tasks[0]
        while task.blocks:
            yield task.take_block()
        if task.done:
            self._tasks.popleft()
            if task.error is not None:
                raise task.error

    def _dispatch(self, producer: Producer) -> bool:
        """Give work to every worker that has room for it; whether only a batch to give was missing."""
        while not self._paused and (worker := self._idlest()) is not None:
            if self._again:
                self._assign(worker, self._again.popleft())
                continue
            if producer.ended or not self._window_has_room():
                return False
            batch = producer.take()
            if batch is None:
                return not producer.ended
            task = Task(batch)
            self._tasks.append(task)
            self._assign(worker, task)
        return False

    def _idlest(self) -> WorkerProcess | None:
        ready = [worker for worker in self._workers if worker.ready and not worker.leaving]
        worker = min(ready, key=lambda one: len(one.tasks), default=None)
        return worker if worker is not None and len(worker.tasks) < self._depth else None

    def _window_has_room(self) -> bool:
        in_flight = sum(task.batch.size_bytes for task in self._tasks)
        return not self._tasks or in_flight < self._window_bytes

    def _assign(self, worker: WorkerProcess, task: Task) -> None:
        worker.tasks.append(task)
        try:
            worker.pipe.send(task.order(self._left_out.get(task.batch.file, frozenset())))
        except OSError:  # it has died; _wait will find out and see to the task
            return

    def _wait(self, bells: list[connection.Connection]) -> None:
        """Until something happens, then see to it. A bell only has to end the wait, and so has the guard."""
        pipes = {worker.pipe: worker for worker in self._workers if self._may_receive(worker)}
        deaths = {worker.sentinel: worker for worker in self._workers}
        for happened in connection.wait([*pipes, *deaths, *bells], timeout=LOOK_EVERY_SECONDS):
            if isinstance(happened, connection.Connection) and happened in pipes:
                if pipes[happened] in self._workers:  # not ended meanwhile
                    self._receive(pipes[happened])
            elif isinstance(happened, int) and deaths[happened] in self._workers:
                worker = deaths[happened]
                if worker.pipe not in pipes or not worker.pipe.poll():  # its last words come first
                    self._bury(worker)

    def _may_receive(self, worker: WorkerProcess) -> bool:
        """Not from a worker that is ahead of the others, once enough is waiting already."""
        if not self._tasks or self._tasks[0] in worker.tasks or not worker.tasks:
            return True
        waiting = sum(len(block.tokens) * 2 for task in self._tasks for block in task.blocks)
        return waiting < self._window_bytes

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            message = receive(worker.pipe)
        except (EOFError, OSError):
            self._bury(worker)
            return
        if isinstance(message, Waiting):
            worker.waiting = message.reason
            self._tell_wait()
        elif isinstance(message, Event):
            self._observer.tell(message)
        elif isinstance(message, Trying):
            worker.tasks[0].trying = message.document
        elif isinstance(message, Ready):
            worker.ready = True
            self._early_deaths = 0
        elif isinstance(message, EncodedBlock):
            task = worker.tasks[0]
            task.trying = None
            task.received += 1
            task.blocks.append(message)
        elif isinstance(message, Done):
            worker.tasks.popleft().done = True
            self._observer.fetch(message.fetched_bytes)
        elif not worker.ready:
            raise message.error
        else:
            task = worker.tasks.popleft()
            task.error, task.done = message.error, True

    def _bury(self, worker: WorkerProcess) -> None:
        """See to what a worker that has died leaves behind. Its successor comes with the next round."""
        cause = worker.describe_end()
        if not worker.ready:
            self._early_deaths += 1
            if self._early_deaths >= MAXIMUM_DEATHS:
                raise WorkerError(f"Workers end before they begin: the last one {cause}.")
        self._observer.tell(Event("worker", f"worker {worker.pid} {cause}; replaced"))
        culprit = worker.tasks[0] if worker.tasks else None
        self._end(worker)
        if culprit is not None and (lost := culprit.note_death(cause)) is not None:
            self._quarantine(culprit, lost)
        elif culprit is not None and culprit.is_hopeless:
            self._give_up(culprit, cause)

    def _end(self, worker: WorkerProcess) -> None:
        """Take a worker away; its batches are done again, without what has arrived of them."""
        worker.kill()
        worker.join()
        self._workers.remove(worker)
        self._again.extendleft(reversed(worker.tasks))
        if worker.waiting is not None:
            self._tell_wait()

    def _quarantine(self, task: Task, document: Quarantined) -> None:
        """Go on without a document. A copy of it further on must share its fate, or the bytes would
        depend on how far the others had come: they start over behind this place."""
        self._lost += 1
        if self._lost > MAXIMUM_QUARANTINED:
            raise WorkerError(
                f"More than {MAXIMUM_QUARANTINED} documents ended their workers: {document.cause}."
            )
        self._leave_out(document)
        for worker in list(self._workers):
            self._end(worker)
        later = list(self._tasks)[self._tasks.index(task) + 1 :]
        for other in later:
            other.start_over()
        before = [other for other in self._again if other not in later and other is not task]
        self._again = deque([*before, task, *later])

    def _leave_out(self, document: Quarantined) -> None:
        known = self._left_out.get(document.file, frozenset())
        self._left_out[document.file] = known | {document.sha256}

    def _give_up(self, task: Task, cause: str) -> None:
        """Workers end over a batch before it comes to any document: it can't be read."""
        batch, file = task.batch, self._spec.source.files[task.batch.file]
        sentence = (
            f"{file.path}: the batch at position {batch.position} ended {task.deaths} workers while it was "
            f"read; the last one {cause}."
        )
        self._again.remove(task)
        task.done = True
        # Only where a resume can begin behind it: it might find the batch readable.
        whole = batch.rows is None and not (batch.inside or batch.ends_inside or batch.seam or task.received)
        if not (self._spec.source.settings.skip_bad and whole):
            task.error = WorkerError(sentence)
            return
        nothing = np.empty(0, np.uint16)
        start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
        left_out = (f"left out: {sentence}",)
        task.blocks.append(EncodedBlock(start, end, nothing, counts=Counts(bad_parts=1), problems=left_out))

    def _tell_wait(self) -> None:
        """Somebody waits for the network, or nobody does any longer."""
        waits = [worker.waiting for worker in self._workers if worker.waiting is not None]
        self._observer.wait("network", waits[0] if waits else None)
