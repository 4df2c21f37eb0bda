"""Decide which worker gets which batch, and put the blocks in order: the rules that all executors share.

- Batches are given out in order, finish in any order, and their blocks come out in order.
- The bytes in flight are bounded: a new batch starts only while the others hold less than the window.
- If a worker is gone, others do its batches again, except for the blocks that have already arrived.
- If a batch crashes workers, the document responsible is found (task.py) and quarantined. A copy of it later
  in the stream must be left out, too, or the output would depend on how far other workers had come:
  therefore all later batches start over.
- A batch that ran out of memory is tried alone, while no other worker has work.

No I/O: a worker is any hashable handle. Executors start workers, send them orders, receive their messages and
end them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.exit_cause import Death
from fineweb_shards.executors.task import Task, WorkOrder
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

# If more documents than this crash their workers, the documents are not the cause, and the run stops.
MAXIMUM_QUARANTINED = 100

Worker = TypeVar("Worker", bound=Hashable)
# Returns what replaces a batch that can't be read: a block without its documents, or an error.
ReplaceUnreadable = Callable[[Task, Death], EncodedBlock | WorkerError]


class Schedule(Generic[Worker]):
    """All batches that are listed and not yet output. `quarantined`: documents left out by earlier runs."""

    def __init__(
        self,
        window_bytes: int,
        queued_batches: int,
        replace_unreadable: ReplaceUnreadable,
        quarantined: Iterable[Quarantined] = (),
    ) -> None:
        self._window_bytes = window_bytes
        self._queued_batches = queued_batches  # the most that one worker may have
        self._replace_unreadable = replace_unreadable
        self._tasks: deque[Task] = deque()  # in order; the first is output next
        self._pending: deque[Task] = deque()  # in order; not done, and no worker has them
        self._held: dict[Worker, deque[Task]] = {}  # each worker's batches; it is encoding the first of them
        self._batches = 0  # added so far
        self._new_quarantined = 0  # documents quarantined in this run
        self._skip_digests: dict[int, frozenset[str]] = {}  # digests of quarantined documents, by file number
        for document in quarantined:
            self._skip(document)

    @property
    def is_empty(self) -> bool:
        """Whether all blocks of all batches were output."""
        return not self._tasks

    @property
    def in_flight_bytes(self) -> int:
        """The size of all batches that are not yet output."""
        return sum(task.batch.size_bytes for task in self._tasks)

    @property
    def tries_alone(self) -> bool:
        """Whether a batch has to be tried while no other worker has work: one worker is then enough."""
        return any(task.alone and not task.done for task in self._tasks)

    # Giving out batches

    @property
    def needs_batch(self) -> bool:
        """Whether a new batch, if there is one, could be given to a worker now."""
        if self._pending or any(task.alone for task in self._held_tasks()):
            return False
        return not self._tasks or self.in_flight_bytes < self._window_bytes

    def add(self, batch: Batch) -> None:
        """Add the next batch of the stream."""
        task = Task(batch, self._batches)
        self._batches += 1
        self._tasks.append(task)
        self._pending.append(task)

    def least_busy(self, workers: Iterable[Worker]) -> Worker | None:
        """Return the worker with the fewest batches; None if even that one has as many as allowed."""
        worker = min(workers, key=self._count_held, default=None)
        return worker if worker is not None and self._count_held(worker) < self._queued_batches else None

    def give_next(self, worker: Worker) -> WorkOrder | None:
        """Give a worker the next batch that no worker has; None if there is none, or if it has to wait."""
        if not self._pending or self._must_wait(self._pending[0]):
            return None
        task = self._pending.popleft()
        self._held.setdefault(worker, deque()).append(task)
        return task.order(self._skip_digests.get(task.batch.file, frozenset()))

    def has_work(self, worker: Worker) -> bool:
        """Return whether a worker has a batch that is not done."""
        return self._count_held(worker) > 0

    def _count_held(self, worker: Worker) -> int:
        return len(self._held.get(worker, ()))

    def _held_tasks(self) -> Iterator[Task]:
        return (task for held in self._held.values() for task in held)

    def _must_wait(self, task: Task) -> bool:
        """Return whether a batch has to wait because it, or another one, must be tried alone."""
        if task.alone:  # only once it is the first, so that its blocks can be output
            return any(True for _ in self._held_tasks()) or task is not self._tasks[0]
        return any(held.alone for held in self._held_tasks())

    # Messages of workers

    def may_receive(self, worker: Worker) -> bool:
        """Return whether to receive from a worker.

        If many blocks wait for their turn, only the worker that has the first batch is heard.
        """
        held = self._held.get(worker)
        if not held or self._tasks[0] in held:
            return True
        waiting = sum(block.size_bytes for task in self._tasks for block in task.blocks)
        return waiting < self._window_bytes

    def announce(self, worker: Worker, document: Quarantined) -> None:
        """Note the document that a worker is about to encode: if the worker dies, this one is suspected."""
        self._held[worker][0].trying = document

    def receive_block(self, worker: Worker, block: EncodedBlock) -> None:
        """Keep the next block of the batch that a worker is encoding."""
        self._held[worker][0].receive_block(block)

    def finish(self, worker: Worker, error: ShardError | None = None) -> None:
        """Note that a worker has finished its batch or, with an `error`, that the batch can't be done."""
        task = self._held[worker].popleft()
        task.done, task.error = True, error

    # Output

    @property
    def has_output(self) -> bool:
        """Whether the first batch has blocks to yield, or is done."""
        return bool(self._tasks) and (bool(self._tasks[0].blocks) or self._tasks[0].done)

    def take_output(self) -> Iterator[EncodedBlock]:
        """Yield the blocks of the first batch that have arrived.

        If the batch has an error, it is raised after them, so that everything before the error is packed.
        """
        task = self._tasks[0]
        while task.blocks:
            yield task.take_block()
        if task.done:
            self._tasks.popleft()
            if task.error is not None:
                raise task.error

    # Removed and dead workers

    def remove_worker(self, worker: Worker) -> None:
        """Take back the batches of a worker that is gone, for other workers; its death is not counted."""
        self._do_again(self._held.pop(worker, ()))

    def note_death(self, worker: Worker, death: Death) -> bool:
        """Take back a dead worker's batches, and decide what to do about the one that it died on.

        If this returns True, the batches of all workers were taken back, and the caller has to end them all.
        """
        held = self._held.get(worker)
        task = held[0] if held else None
        self.remove_worker(worker)
        if task is None:
            return False
        was_alone = task.alone
        if (quarantined := task.note_death(death)) is not None:
            self._quarantine(task, quarantined)
            return True
        if task.is_unreadable:
            self._give_up(task, death)
        elif task.alone and not was_alone:
            self._take_all_back()
            return True
        return False

    def _take_all_back(self) -> None:
        for worker in list(self._held):
            self.remove_worker(worker)

    def _do_again(self, tasks: Iterable[Task]) -> None:
        self._pending = deque(sorted({*self._pending, *tasks}, key=lambda task: task.number))

    def _quarantine(self, task: Task, document: Quarantined) -> None:
        """Leave out a document, which crashed the workers of `task`, and start all later batches over."""
        self._new_quarantined += 1
        if self._new_quarantined > MAXIMUM_QUARANTINED:
            raise WorkerError(
                f"More than {MAXIMUM_QUARANTINED} documents crashed their workers: {document.cause}."
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
        """Replace a batch on which workers die before they reach a document."""
        self._pending.remove(task)
        task.done = True
        instead = self._replace_unreadable(task, death)
        if isinstance(instead, EncodedBlock):
            task.blocks.append(instead)
        else:
            task.error = instead
