"""Decides which worker does what, and in which order blocks come out: the rules that every executor shares.

- Batches are given out in order, finish in any order and come out in order.
- What is in flight is bounded in bytes: a new batch begins only while the others hold less than the window.
- A worker that is gone leaves its batches to the others, who do them again, without what has arrived.
- A batch that ends workers is narrowed down to the document that does it (task.py), which goes to quarantine.
  A copy of it further on must share its fate, or the bytes would depend on how far the others had come: all
  batches behind it start over.
- A batch that ran out of memory is tried alone, with nobody else at work.

Pure: workers are handles that can be told apart, whatever they are. An executor starts and ends them, speaks
to them and waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.death import Death
from fineweb_shards.executors.task import Task, WorkOrder
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

# So many documents ended their workers: then it is not the documents.
MAXIMUM_QUARANTINED = 100

Worker = TypeVar("Worker", bound=Hashable)
# What takes the place of a batch that can't be read: a block without its documents, or an error.
ReplaceUnreadable = Callable[[Task, Death], EncodedBlock | WorkerError]


class Schedule(Generic[Worker]):
    """All batches between their listing and their last block. `quarantined`: documents of earlier runs."""

    def __init__(
        self,
        window_bytes: int,
        queued_batches: int,
        replace_unreadable: ReplaceUnreadable,
        quarantined: Iterable[Quarantined] = (),
    ) -> None:
        self._window_bytes = window_bytes
        self._queued_batches = queued_batches  # that a worker may have at once
        self._replace_unreadable = replace_unreadable
        self._tasks: deque[Task] = deque()  # in order; the first is the one to come out next
        self._pending: deque[Task] = deque()  # those that no worker has and that are not done; in order, too
        self._held: dict[Worker, deque[Task]] = {}  # by the worker that has them; it is at the first
        self._batches = 0  # begun
        self._lost_documents = 0  # in this run
        self._skip_digests: dict[int, frozenset[str]] = {}  # documents in quarantine, by file
        for document in quarantined:
            self._skip(document)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was added has come out."""
        return not self._tasks

    @property
    def in_flight_bytes(self) -> int:
        """The size of all batches that have not come out yet."""
        return sum(task.batch.size_bytes for task in self._tasks)

    @property
    def tries_alone(self) -> bool:
        """Whether a batch has to be tried with nobody else at work: one worker is enough then."""
        return any(task.alone and not task.done for task in self._tasks)

    # Giving out

    @property
    def needs_batch(self) -> bool:
        """Whether a worker that asked for work now would get a new batch, if there were one."""
        if self._pending or any(task.alone for task in self._in_hand()):
            return False
        return not self._tasks or self.in_flight_bytes < self._window_bytes

    def add(self, batch: Batch) -> None:
        """Enter the next batch of the stream."""
        task = Task(batch, self._batches)
        self._batches += 1
        self._tasks.append(task)
        self._pending.append(task)

    def least_busy(self, workers: Iterable[Worker]) -> Worker | None:
        """Choose the worker that has the least to do, if it may have more."""
        worker = min(workers, key=self._count_held, default=None)
        return worker if worker is not None and self._count_held(worker) < self._queued_batches else None

    def give_next(self, worker: Worker) -> WorkOrder | None:
        """Give a worker the next batch that nobody has; None where there is none, or it has to wait."""
        if not self._pending or self._must_wait(self._pending[0]):
            return None
        task = self._pending.popleft()
        self._held.setdefault(worker, deque()).append(task)
        return task.order(self._skip_digests.get(task.batch.file, frozenset()))

    def has_work(self, worker: Worker) -> bool:
        """Whether a worker has a batch that is not done."""
        return self._count_held(worker) > 0

    def _count_held(self, worker: Worker) -> int:
        return len(self._held.get(worker, ()))

    def _in_hand(self) -> Iterator[Task]:
        return (task for held in self._held.values() for task in held)

    def _must_wait(self, task: Task) -> bool:
        """Whether a batch can't be given out now because it, or another one, has to be tried alone."""
        if task.alone:  # in its turn, so that its blocks can come out
            return any(True for _ in self._in_hand()) or task is not self._tasks[0]
        return any(held.alone for held in self._in_hand())

    # What workers say

    def may_receive(self, worker: Worker) -> bool:
        """Whether to listen to a worker: not to one that is ahead of the others, once enough is waiting."""
        held = self._held.get(worker)
        if not held or self._tasks[0] in held:
            return True
        waiting = sum(block.size_bytes for task in self._tasks for block in task.blocks)
        return waiting < self._window_bytes

    def announce(self, worker: Worker, document: Quarantined) -> None:
        """Note the document that a worker is about to try: if it ends now, it was this one."""
        self._held[worker][0].trying = document

    def receive_block(self, worker: Worker, block: EncodedBlock) -> None:
        """Take the next block of the batch that a worker is at."""
        self._held[worker][0].receive_block(block)

    def finish(self, worker: Worker, error: ShardError | None = None) -> None:
        """Note that a worker is through with its batch or, with an `error`, that nobody can do it."""
        task = self._held[worker].popleft()
        task.done, task.error = True, error

    # What comes out

    @property
    def has_output(self) -> bool:
        """Whether `take_output` has something to give."""
        return bool(self._tasks) and (bool(self._tasks[0].blocks) or self._tasks[0].done)

    def take_output(self) -> Iterator[EncodedBlock]:
        """Yield what has come of the first batch. Its error, if it has one, is raised in its turn, so that
        everything in front of it is packed first."""
        task = self._tasks[0]
        while task.blocks:
            yield task.take_block()
        if task.done:
            self._tasks.popleft()
            if task.error is not None:
                raise task.error

    # Workers that are gone

    def remove_worker(self, worker: Worker) -> None:
        """Take a worker's batches back; without blame, because it was sent away."""
        self._do_again(self._held.pop(worker, ()))

    def note_death(self, worker: Worker, death: Death) -> bool:
        """Take a dead worker's batches back, and decide about the one it died over. Where that returns True,
        nobody has a batch any more, and all other workers have to be ended."""
        held = self._held.get(worker)
        culprit = held[0] if held else None
        self.remove_worker(worker)
        if culprit is None:
            return False
        was_alone = culprit.alone
        if (lost := culprit.note_death(death)) is not None:
            self._quarantine(culprit, lost)
            return True
        if culprit.is_hopeless:
            self._give_up(culprit, death)
        elif culprit.alone and not was_alone:
            self._take_all_back()
            return True
        return False

    def _take_all_back(self) -> None:
        for worker in list(self._held):
            self.remove_worker(worker)

    def _do_again(self, tasks: Iterable[Task]) -> None:
        self._pending = deque(sorted({*self._pending, *tasks}, key=lambda task: task.number))

    def _quarantine(self, task: Task, document: Quarantined) -> None:
        """Go on without a document, which ended the workers of `task`."""
        self._lost_documents += 1
        if self._lost_documents > MAXIMUM_QUARANTINED:
            raise WorkerError(
                f"More than {MAXIMUM_QUARANTINED} documents ended their workers: {document.cause}."
            )
        self._skip(document)
        self._take_all_back()
        later = [other for other in self._tasks if other.number > task.number]
        for other in later:
            other.start_over()
        self._do_again(later)

    def _skip(self, document: Quarantined) -> None:
        known = self._skip_digests.get(document.file, frozenset())
        self._skip_digests[document.file] = known | {document.sha256}

    def _give_up(self, task: Task, death: Death) -> None:
        """Go on without a batch over which workers end before they come to any document."""
        self._pending.remove(task)
        task.done = True
        instead = self._replace_unreadable(task, death)
        if isinstance(instead, EncodedBlock):
            task.blocks.append(instead)
        else:
            task.error = instead
