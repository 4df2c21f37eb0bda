"""The supervisor: a pool of worker processes on this machine.

Batches are dispatched in order, finish in any order and come out in order. What is in flight is bounded
in bytes. A worker that dies is replaced and its batches are done again: `multiprocessing.Pool`
would hang for ever then (cpython#66587, #96062), `ProcessPoolExecutor` would lose the whole pool.
Every worker has a private pipe, because a shared queue's lock dies with its holder (cpython#88304).

Everything happens in the caller's thread, inside `encode`: while the caller is busy writing, nothing is
received, workers wait in their pipes, and memory stays where it is. When the machine is short of memory
(guard.py) no work is given out, and when that is not enough workers go, until it has passed. Only
the watchdog has a thread of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import connection

import numpy as np

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.death import Death
from fineweb_shards.executors.local.messages import Alive, Done, Ready, Trying, Waiting, receive
from fineweb_shards.executors.local.pool import WorkerPool
from fineweb_shards.executors.local.process import WorkerProcess
from fineweb_shards.executors.local.producer import Producer
from fineweb_shards.executors.local.watchdog import Watchdog
from fineweb_shards.executors.local.worker import WorkerSpec
from fineweb_shards.executors.task import Task
from fineweb_shards.stream.borders import NO_PLACES
from fineweb_shards.system.memory_guard import LOOK_EVERY_SECONDS, MemoryGuard
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, Quarantined

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
        self._pool = WorkerPool(spec, guard)
        self._watchdog = Watchdog(lambda: self._awaited)
        self._awaited: list[WorkerProcess] = []  # whom we wait for; nobody while the caller is busy
        self._observer = Observer()
        self._tasks: deque[Task] = deque()  # in order; the first is the one to come out next
        self._again: deque[Task] = deque()  # their worker is gone; in order, too
        self._batches = 0  # begun
        self._skip_digests: dict[int, frozenset[str]] = {}  # documents in quarantine, by file
        for document in quarantined:
            self._leave_out(document)
        self._lost = 0  # documents, in this run
        by_value = any(file.by_value for file in spec.source.files)
        self._depth = _QUEUED_TEXTS if by_value else _QUEUED_REFERENCES

    def __enter__(self) -> LocalExecutor:
        self._pool.fill(self._count)
        self._watchdog.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watchdog.__exit__()
        self._pool.stop()

    def observe(self, observer: Observer) -> None:
        """Who is told of accidents and waits from now on."""
        self._observer = self._pool.observer = self._watchdog.observer = observer

    @property
    def workers(self) -> int:
        """How many are at work now."""
        return len(self._workers)

    @property
    def _workers(self) -> list[WorkerProcess]:
        return self._pool.workers

    def encode(self, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
        """The blocks of all batches, in the batches' order."""
        producer = Producer(batches, ahead=2 * self._count)
        try:
            while True:
                self._apply_memory_advice()
                needs_batch = self._dispatch(producer)
                if self._tasks and (self._tasks[0].blocks or self._tasks[0].done):
                    self._awaited = []
                    yield from self._take_first()
                elif not self._tasks and producer.ended:
                    if producer.failure is not None:
                        raise producer.failure
                    return
                else:
                    self._wait([producer.wakeup] if needs_batch else [])
        finally:
            self._awaited = []
            producer.stop()

    def _apply_memory_advice(self) -> None:
        """Do what the guard says; start the workers that are missing once memory allows it."""
        for worker in self._pool.apply_memory_advice():
            self._end(worker)
        self._pool.fill(1 if any(task.alone and not task.done for task in self._tasks) else self._count)

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
        while not self._pool.paused and (worker := self._pool.least_busy(self._depth)) is not None:
            if self._again:
                if self._must_wait(self._again[0]):
                    return False
                self._assign(worker, self._again.popleft())
                continue
            if producer.ended or not self._window_has_room() or self._must_wait(None):
                return False
            batch = producer.take()
            if batch is None:
                return not producer.ended
            task = Task(batch, self._batches)
            self._batches += 1
            self._tasks.append(task)
            self._assign(worker, task)
        return False

    def _must_wait(self, task: Task | None) -> bool:
        """Whether a batch can't be given out now because it, or another one, has to be tried alone."""
        in_hand = [held for worker in self._workers for held in worker.tasks]
        if task is not None and task.alone:  # in its turn, so that its blocks can come out
            return bool(in_hand) or task is not self._tasks[0]
        return any(held.alone for held in in_hand)

    def _window_has_room(self) -> bool:
        in_flight = sum(task.batch.size_bytes for task in self._tasks)
        return not self._tasks or in_flight < self._window_bytes

    def _assign(self, worker: WorkerProcess, task: Task) -> None:
        worker.tasks.append(task)
        if task.one_by_one:
            worker.note_order()
        self._awaited = [worker]  # a worker that does not listen would keep us here
        try:
            worker.pipe.send(task.order(self._skip_digests.get(task.batch.file, frozenset())))
        except OSError:  # it has died; _wait will find out and see to the task
            return

    def _wait(self, wakeups: list[connection.Connection]) -> None:
        """Until something happens, then see to it. A bell only has to end the wait, and so has the guard."""
        pipes = {worker.pipe: worker for worker in self._workers if self._may_receive(worker)}
        deaths = {worker.sentinel: worker for worker in self._workers}
        self._awaited = [worker for worker in pipes.values() if worker.owes_us_something]
        for happened in connection.wait([*pipes, *deaths, *wakeups], timeout=LOOK_EVERY_SECONDS):
            if isinstance(happened, connection.Connection) and happened in pipes:
                if pipes[happened] in self._workers:  # not ended meanwhile
                    self._receive(pipes[happened])
            elif isinstance(happened, int) and deaths[happened] in self._workers:
                worker = deaths[happened]
                if worker.pipe not in pipes or not worker.pipe.poll():  # its last words come first
                    self._handle_death(worker)

    def _may_receive(self, worker: WorkerProcess) -> bool:
        """Not from a worker that is ahead of the others, once enough is waiting already."""
        if not self._tasks or self._tasks[0] in worker.tasks or not worker.tasks:
            return True
        waiting = sum(block.size_bytes for task in self._tasks for block in task.blocks)
        return waiting < self._window_bytes

    def _receive(self, worker: WorkerProcess) -> None:
        self._awaited = [worker]  # one that stops in the middle of a message would keep us here
        try:
            message = receive(worker.pipe)
        except (EOFError, OSError):
            self._handle_death(worker)
            return
        finally:
            self._awaited = []  # whoever is told now may take their time
        worker.messages += 1
        if isinstance(message, Alive):
            return
        if isinstance(message, Waiting):
            worker.waiting = message.reason
            self._pool.tell_wait()
        elif isinstance(message, Event):
            self._observer.tell(message)
        elif isinstance(message, Trying):
            worker.tasks[0].trying = message.document
        elif isinstance(message, Ready):
            worker.ready = True
            self._pool.note_ready()
        elif isinstance(message, EncodedBlock):
            worker.tasks[0].receive_block(message)
        elif isinstance(message, Done):
            worker.tasks.popleft().done = True
            self._observer.fetch(message.fetched_bytes)
        elif not worker.ready:
            raise message.error
        else:
            task = worker.tasks.popleft()
            task.error, task.done = message.error, True

    def _handle_death(self, worker: WorkerProcess) -> None:
        """See to what a worker that has died leaves behind. Its successor comes with the next round."""
        death = worker.explain_end()
        if not worker.ready:
            self._pool.note_early_death(death)
        self._observer.tell(Event("worker", f"worker {worker.pid} {death.words}; replaced"))
        culprit = worker.tasks[0] if worker.tasks else None
        self._end(worker)
        if culprit is None:
            return
        was_alone = culprit.alone
        if (lost := culprit.note_death(death)) is not None:
            self._quarantine(culprit, lost)
        elif culprit.is_hopeless:
            self._give_up(culprit, death)
        elif culprit.alone and not was_alone:
            self._end_all()

    def _end(self, worker: WorkerProcess) -> None:
        """Take a worker away; its batches are done again, without what has arrived of them."""
        self._pool.remove(worker)
        self._do_again(worker.tasks)
        if worker.waiting is not None:
            self._pool.tell_wait()

    def _end_all(self) -> None:
        for worker in list(self._workers):
            self._end(worker)

    def _do_again(self, tasks: Iterable[Task]) -> None:
        self._again = deque(sorted({*self._again, *tasks}, key=lambda task: task.number))

    def _quarantine(self, task: Task, document: Quarantined) -> None:
        """Go on without a document. A copy of it further on must share its fate, or the bytes would
        depend on how far the others had come: they start over behind this place."""
        self._lost += 1
        if self._lost > MAXIMUM_QUARANTINED:
            raise WorkerError(
                f"More than {MAXIMUM_QUARANTINED} documents ended their workers: {document.cause}."
            )
        self._leave_out(document)
        self._end_all()
        later = [other for other in self._tasks if other.number > task.number]
        for other in later:
            other.start_over()
        self._do_again(later)

    def _leave_out(self, document: Quarantined) -> None:
        known = self._skip_digests.get(document.file, frozenset())
        self._skip_digests[document.file] = known | {document.sha256}

    def _give_up(self, task: Task, death: Death) -> None:
        """Workers end over a batch before it comes to any document: it can't be read."""
        batch, file = task.batch, self._spec.source.files[task.batch.file]
        sentence = (
            f"{file.path}: the batch at position {batch.position} ended {task.deaths} workers while it was "
            f"read; the last one {death.words}."
        )
        self._again.remove(task)
        task.done = True
        # Only where a resume can begin behind it: it might find the batch readable.
        whole = batch.rows is None and not (
            batch.starts_mid_document or batch.ends_mid_document or batch.seam or task.received
        )
        if task.stuck or not (self._spec.source.settings.skip_bad and whole):  # a disk may have been away
            task.error = WorkerError(sentence)
            return
        nothing = np.empty(0, self._spec.vocabulary.dtype), NO_PLACES
        start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
        note = (f"left out: {sentence}",)
        task.blocks.append(EncodedBlock(start, end, *nothing, counts=Counts(bad_parts=1), problems=note))
