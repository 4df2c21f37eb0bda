"""Assign batches to workers and put the blocks in order: the rules that all executors share.

- Batches start in order and finish in any order; their blocks come out in order, in a mix within each part. The batches
  of one part form a *lane*.
- A worker keeps the tokens of its blocks until it has written them.
- Bytes in flight are bounded: a new batch starts only while the unwritten ones hold less than the window. When blocks
  are held back (by a mix, or until a document's length is known), one batch at a time may exceed the window, from the
  lane that all others wait for.
- A batch larger than the window (a huge row group on the hub) starts after all earlier ones were output, on a separate
  worker, which waits until its tokens are written.
- If a worker dies, others encode its batches again from the first unwritten block.
- If a batch crashes workers, the document responsible is found (task.py) and quarantined. Later copies of it must be
  left out, too, or the output would depend on the progress of other workers: therefore all later batches start over.
- A batch that a worker died on gets a separate worker, so that it can't take the tokens of other batches with it.
- A batch that ran out of memory is tried alone, while all other workers are idle.
- A batch of several files is split into one batch per file as soon as a worker dies on it or a document of it is left
  out. Then the rules above apply to each file as if they had never been joined.

No I/O: a worker is any hashable handle. Executors start workers, send them orders, receive their messages and end them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Generic

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.base import Lane
from fineweb_shards.executors.messages import WorkOrder, WriteOrder
from fineweb_shards.executors.task import Death, Task, Worker
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement, Quarantined

# If more documents than this crash their workers, the documents are not the cause, and the run stops.
MAXIMUM_QUARANTINED = 100

# Returns the replacement for a batch that can't be read: a block without its documents, or an error.
ReplaceUnreadable = Callable[[Task, Death], EncodedBlock | WorkerError]


@dataclass
class _Load:
    """The work assigned to one worker."""

    tasks: deque[Task] = field(default_factory=deque)  # it is encoding the first of them
    held: int = 0  # blocks whose tokens it has
    ordered: int = 0  # unfinished steps of write orders

    @property
    def is_reserved(self) -> bool:
        """Whether it has a batch that needs a separate worker."""
        return bool(self.tasks) and (self.tasks[0].is_suspect or self.tasks[0].is_large)


class Schedule(Generic[Worker]):
    """All batches listed but not yet written. `quarantined` are documents that earlier runs left out."""

    def __init__(
        self,
        window_bytes: int,
        queued_batches: int,
        replace_unreadable: ReplaceUnreadable,
        quarantined: Iterable[Quarantined] = (),
    ) -> None:
        self.window_bytes = window_bytes
        self._queued_batches = queued_batches  # the most that one worker may have
        self._replace_unreadable = replace_unreadable
        # By lane: batches not yet output, in order.
        self._tasks: defaultdict[int, deque[Task]] = defaultdict(deque)
        self.lanes: defaultdict[int, Lane] = defaultdict(Lane)
        self._pending: deque[Task] = deque()  # in order, not assigned to any worker
        self._unfinished: dict[int, Task] = {}  # by number
        self._loads: dict[Worker, _Load] = {}
        self._alone: set[Task] = set()  # to be tried while all other workers are idle
        self.in_flight_bytes = 0  # the size of all batches not yet written
        self._batches = 0  # added so far
        # Of quarantined documents, by part and file.
        self._digests: defaultdict[tuple[int, int], frozenset[str]] = defaultdict(frozenset)
        self._newly_quarantined = 0  # in this run
        for document in quarantined:
            self._digests[document.part, document.file] |= {document.sha256}

    def was_output(self, lane: int) -> bool:
        return not self._tasks[lane]

    @property
    def tries_alone(self) -> bool:
        """Whether a batch has to be tried alone: one worker is then enough."""
        return any(not task.done for task in self._alone)

    # Giving out batches

    @property
    def next_pending(self) -> int | None:
        """The number of the next batch to assign; None if all are assigned."""
        return self._pending[0].number if self._pending else None

    def needs_batch(self, lane: int = 0, *, awaited: bool = True) -> bool:
        """Return whether a new batch of this lane could be assigned now. `awaited`: after the blocks output so far the
        stream needs this lane and no other."""
        if self._pending or self._is_alone():
            return False
        if not self._unfinished or self.in_flight_bytes < self.window_bytes:
            return True
        if not awaited or self._tasks[lane]:
            return False
        # Go beyond the window only if blocks are held back until this lane's next ones arrive (stream/length_limits.py,
        # mix.py), and not because writing is slow: a slow disk must not fill the memory.
        held = [task.held.values() for task in self._unfinished.values() if task.held]
        return not any(all(block.is_placed for block in blocks) for blocks in held)

    def add(self, batch: Batch, lane: int = 0) -> None:
        task = Task(batch, self._batches, lane, is_large=batch.size_bytes > self.window_bytes)
        self._batches += max(1, len(batch.members))  # a number for each file, in case the batch is split
        self._tasks[lane].append(task)
        self._pending.append(task)
        self._unfinished[task.number] = task
        self.in_flight_bytes += batch.size_bytes
        self.lanes[lane].waiting_bytes += batch.size_bytes
        if any((member.part, member.file) in self._digests for member in batch.members):
            self._separate(task)

    def least_busy(self, workers: Iterable[Worker]) -> Worker | None:
        """Return the worker with the fewest batches; None if no worker may have another."""
        found, fewest = None, self._queued_batches
        for worker in workers:
            load = self._loads.get(worker)
            if load is None or not load.tasks:
                return worker
            if len(load.tasks) < fewest and not load.is_reserved:
                found, fewest = worker, len(load.tasks)
        return found

    def give_next(self, worker: Worker) -> WorkOrder | None:
        """Assign the next batch to a worker; None if there is none, or if it has to wait."""
        waiting: set[int] = set()  # lanes whose next batch has to wait until earlier ones were output
        for task in self._pending:
            lane = self._tasks[task.lane]
            is_later = lane and lane[0].number < task.number  # else it may have been output, and then lost
            if is_later and (task in self._alone or task.is_large):
                waiting.add(task.lane)
            if task.lane not in waiting:
                break
        else:  # other lanes were tried, because the consumer may be waiting for lost tokens of theirs
            return None
        has_to_wait = any(load.tasks for load in self._loads.values()) if task in self._alone else self._is_alone()
        if has_to_wait:
            return None
        load = self._loads.setdefault(worker, _Load())
        if load.is_reserved or ((task.is_suspect or task.is_large) and (load.tasks or load.ordered)):
            return None
        self._pending.remove(task)
        load.tasks.append(task)
        task.worker = worker
        return task.order(self._digests.get((task.batch.part, task.batch.file), frozenset()))

    def has_work(self, worker: Worker) -> bool:
        load = self._loads.get(worker)
        return load is not None and bool(load.tasks or load.ordered)

    def keeps_any(self, worker: Worker) -> bool:
        """Return whether a worker has work, or tokens still to be written."""
        return self.has_work(worker) or (worker in self._loads and self._loads[worker].held > 0)

    def _is_alone(self) -> bool:
        return any(task in load.tasks for task in self._alone for load in self._loads.values())

    # Messages of workers

    def announce(self, worker: Worker, document: Quarantined) -> None:
        """Note the document that a worker is about to encode; it is suspected if the worker dies."""
        self._loads[worker].tasks[0].trying = document

    def receive_block(self, worker: Worker, index: int, block: EncodedBlock) -> WriteOrder | None:
        """Keep block `index` of a worker's batch. Returns the order to write it if it was placed, and then lost."""
        load = self._loads[worker]
        task = load.tasks[0]
        if task.abandoned and index not in task.held:
            return None
        order = task.receive_block(index, block)
        if index in task.held:
            load.held += 1
            load.ordered += order.steps if order else 0
        return order

    def finish(self, worker: Worker, error: ShardError | None = None) -> None:
        """Note that a worker has encoded its batch or, with an `error`, that the batch can't be encoded."""
        task = self._loads[worker].tasks.popleft()
        task.done = True
        if error is not None:
            task.fail(error)
        self._drop_if_finished(task)

    def place(
        self, tokens: HeldTokens, placements: Sequence[Placement], *, last: bool = True
    ) -> tuple[WriteOrder, Worker | None, list[Future[None]]]:
        """Return the order to write a block, the worker that has its tokens, and a future for each placement. If the
        tokens are lost, the worker is None, and `receive_block` returns the order once they have been encoded again."""
        task = self._unfinished[tokens.batch]
        held = task.held[tokens.block]
        order = WriteOrder(tokens.batch, tokens.block, tuple(placements), last)
        held.placements += order.placements
        held.is_placed = last
        futures: list[Future[None]] = [Future() for _ in placements]
        held.futures.extend(futures)
        if not held.present:
            return order, None, futures
        self._loads[task.worker].ordered += order.steps
        return order, task.worker, futures

    def note_written(self, worker: Worker, batch: int, block: int) -> None:
        """Note that the next placement of a block is written, and need not be written again."""
        task = self._unfinished[batch]
        held = task.held[block]
        held.placements = held.placements[1:]
        self._loads[worker].ordered -= 1
        written = held.futures.popleft()
        if not written.done():  # done if another worker failed to write it, and died
            written.set_result(None)
        if task.abandoned and not (held.is_placed or held.futures):
            self._forget(task, block)
            self._drop_if_finished(task)

    def fail_write(self, batch: int, block: int, error: ShardError) -> None:
        unwritten = self._unfinished[batch].held[block].futures[0]
        if not unwritten.done():
            unwritten.set_exception(error)

    def note_dropped(self, worker: Worker | None, batch: int, block: int) -> None:
        """Note that a worker has written all of a block and dropped its tokens."""
        task = self._unfinished.get(batch)
        if task is None or task.held.pop(block, None) is None:
            return  # it was already written, and encoded again only because of its neighbours
        if worker in self._loads:  # else the worker is gone, but it had written the block
            self._loads[worker].held -= 1
            self._loads[worker].ordered -= 1
        self._drop_if_finished(task)

    def keeps(self, batch: int, block: int) -> bool:
        task = self._unfinished.get(batch)
        return task is not None and block in task.held

    def _drop_if_finished(self, task: Task) -> None:
        """Forget a batch once all its blocks are output and written."""
        is_finished = task.done and not task.blocks and not task.held and self._was_output(task)
        if is_finished and self._unfinished.pop(task.number, None) is not None:
            self._alone.discard(task)
            self.in_flight_bytes -= task.batch.size_bytes

    def _was_output(self, task: Task) -> bool:
        lane = self._tasks[task.lane]
        return not lane or lane[0].number > task.number

    # Output

    @property
    def output_lane(self) -> int | None:
        """The lane that `take_output` would yield from; None if there is no output yet."""
        task = self._next_output()
        return None if task is None else task.lane

    def _next_output(self) -> Task | None:
        return next((tasks[0] for tasks in self._tasks.values() if tasks and (tasks[0].blocks or tasks[0].done)), None)

    def take_output(self) -> Iterator[EncodedBlock]:
        """Yield the available blocks of the next batch, and raise its error after them, so that they are packed."""
        task = self._next_output()
        assert task is not None, "no output: check output_lane first"
        while task.blocks:
            block = task.blocks.popleft()
            if task.quarantined:  # these documents precede the block
                block = replace(block, quarantined=(*task.quarantined, *block.quarantined))
                task.quarantined = []
            yield block
        if task.done:
            self._tasks[task.lane].popleft()
            self.lanes[task.lane].waiting_bytes -= task.batch.size_bytes
            self.lanes[task.lane].output_bytes += task.batch.size_bytes
            self._drop_if_finished(task)
            if task.error is not None:
                raise task.error

    def abandon_output(self) -> None:
        """The stream ends here: give up everything that was not placed."""
        for lane in list(self._tasks):
            self.abandon_lane(lane)
        self.lanes.clear()
        for task in list(self._unfinished.values()):
            if any(not held.is_placed for held in task.held.values()):
                self._abandon(task)

    def abandon_lane(self, lane: int) -> None:
        """Give up the batches of a lane that were not output: an earlier one can't be read."""
        tasks, self._tasks[lane] = self._tasks[lane], deque()
        self.lanes[lane].waiting_bytes = 0
        for task in tasks:
            self._abandon(task)

    def _abandon(self, task: Task) -> None:
        task.abandoned = True
        task.blocks.clear()
        for index, held in list(task.held.items()):
            if not (held.is_placed or held.futures):
                self._forget(task, index)
        if not task.held:
            task.done = True
            if task in self._pending:
                self._pending.remove(task)
            self._drop_if_finished(task)

    def _forget(self, task: Task, index: int) -> None:
        if task.held.pop(index).present:
            self._loads[task.worker].held -= 1

    # Removed and dead workers

    def dismiss(self, worker: Worker) -> None:
        """Forget an idle worker that holds no tokens and will get no more work."""
        self._loads.pop(worker, None)

    def remove_worker(self, worker: Worker, *, suspects: bool = False) -> None:
        """Take back the batches of a worker that is gone, without counting its death. `suspects`: any of the batches
        may have ended it, so each gets a separate worker."""
        load = self._loads.pop(worker, None)
        for task in load.tasks if load and suspects else ():
            task.is_suspect = True
        held = [task for task in self._unfinished.values() if task.worker == worker]
        for task in held:
            task.worker = None
            for block in task.held.values():
                block.present = False
        self._do_again(task for task in held if task.held or not task.done)

    def note_death(self, worker: Worker, death: Death) -> bool:
        """Take back a dead worker's batches and decide how to continue with the one it died on. Returns True if the
        batches of all workers were taken back: the caller then has to end them all."""
        load = self._loads.get(worker)
        task = load.tasks[0] if load and load.tasks else None
        for other in self._unfinished.values():
            if other.worker == worker and other is not task:
                other.note_loss(death)
        self.remove_worker(worker)
        if task is None:
            return False
        if task.abandoned:
            task.note_loss(death)
            return False
        if task.batch.members and not self._was_output(task) and len(task.blocks) == task.received:
            self._separate(task)
            return False
        was_alone = task.alone
        if (quarantined := task.note_death(death)) is not None:
            self._leave_out(task, quarantined)
            return True
        if task.is_unreadable:
            self._pending.remove(task)
            task.done = True
            instead = self._replace_unreadable(task, death)
            if isinstance(instead, EncodedBlock):
                task.receive_block(task.received, instead)
            else:
                task.fail(instead)
        elif task.alone and not was_alone:
            self._alone.add(task)
            for other_worker in list(self._loads):
                self.remove_worker(other_worker)
            return True
        return False

    def _separate(self, task: Task) -> None:
        """Split a batch of several files, none of it output yet, into one batch per file."""
        tasks = [Task(batch, task.number + i, task.lane) for i, batch in enumerate(task.batch.members)]
        lane = self._tasks[task.lane]
        self._tasks[task.lane] = deque(new for old in lane for new in (tasks if old is task else [old]))
        del self._unfinished[task.number]
        self._unfinished |= {one.number: one for one in tasks}
        self._pending.remove(task)
        self._do_again(tasks)

    def _do_again(self, tasks: Iterable[Task]) -> None:
        self._pending = deque(sorted({*self._pending, *tasks}, key=lambda task: task.number))

    def _leave_out(self, task: Task, document: Quarantined) -> None:
        """Leave out the document that crashed the workers of `task`, and start all later batches over."""
        if self._was_output(task):  # and later documents were placed after it
            raise WorkerError(
                f"A document of the batch at position {task.batch.position} was encoded before, but now "
                f"crashes workers: {document.cause}.",
                "Memory may be short or faulty. Everything finished is kept; rerun the same command to resume.",
            )
        self._newly_quarantined += 1
        if self._newly_quarantined > MAXIMUM_QUARANTINED:
            raise WorkerError(f"More than {MAXIMUM_QUARANTINED} documents crashed their workers: {document.cause}.")
        self._digests[document.part, document.file] |= {document.sha256}
        task.skip_digests = self._digests[document.part, document.file]
        for worker in list(self._loads):
            self.remove_worker(worker)
        later = [other for other in self._tasks[task.lane] if other.number > task.number]
        for other in later:  # none of their blocks was output
            other.blocks.clear()
            other.lengths.clear()
            other.held.clear()
            other.done, other.error, other.skip_digests = False, None, None
        self._do_again(later)
