"""Track one batch: its encoded blocks, those a worker still holds, and the workers that died on it. Also track the
files to be finished. No I/O.

A worker keeps a block's tokens until they are written. If it dies first, another worker encodes the batch again from
the first missing block and gets the same tokens.

After three deaths the documents of the batch are encoded one by one (encode_batch.py). From then on the way a worker
dies (`DeathKind`, determined in local/pool.py) decides what happens to the document announced last; the table is in
docs/architecture.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.messages import FileOrder, FileResult, FileWork, WorkOrder, WriteOrder, describe_work
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement, Quarantined

MAXIMUM_DEATHS = 3  # of workers on one batch, before its documents are encoded one by one
MAXIMUM_KILLS = 30  # from outside on one batch, without a block in between
MAXIMUM_LOSSES = 30  # of workers that held unwritten blocks of one batch
Worker = TypeVar("Worker", bound=Hashable)


class DeathKind(Enum):
    CRASHED = "crashed by itself"
    OUT_OF_MEMORY = "out of memory, because of its document or of other programs"
    KILLED = "killed from outside"
    STUCK = "killed by the watchdog because it did nothing"


@dataclass(frozen=True, slots=True)
class Death:
    """How one worker died. `description` is a predicate, such as "was killed by signal 9"."""

    kind: DeathKind
    description: str


@dataclass
class DeathCount:
    """The deaths of workers on work that involves no document."""

    crashes: int = 0
    kills: int = 0

    def add(self, death: Death) -> bool:
        """Count a death; return whether that is one too many."""
        is_crash = death.kind in (DeathKind.CRASHED, DeathKind.STUCK)
        self.crashes += is_crash
        self.kills += not is_crash
        return self.crashes >= MAXIMUM_DEATHS or self.kills >= MAXIMUM_KILLS


@dataclass
class HeldBlock:
    present: bool = True  # a worker has the tokens; False: they have to be encoded again
    placements: tuple[Placement, ...] = ()  # those known so far that are not written
    is_placed: bool = False  # all are known
    futures: deque[Future[None]] = field(default_factory=deque)  # one for each placement


@dataclass(eq=False)
class Task:
    """A batch, its blocks, and the deaths of workers that encoded it."""

    batch: Batch
    number: int = 0  # in listing order
    lane: int = 0
    worker: Any = None  # that has it, or its blocks
    blocks: deque[EncodedBlock] = field(default_factory=deque)  # encoded, not yet output
    lengths: list[int] = field(default_factory=list)  # in tokens, of all encoded blocks
    held: dict[int, HeldBlock] = field(default_factory=dict)  # by block number
    skip_digests: frozenset[str] | None = None  # None: not given to any worker yet
    done: bool = False
    error: ShardError | None = None
    quarantined: list[Quarantined] = field(default_factory=list)  # not yet attached to a block
    trying: Quarantined | None = None  # the document announced last
    is_suspect: bool = False  # a worker died while it had this batch: it gets a separate worker
    is_large: bool = False  # larger than the window: it gets a separate worker, too
    deaths: int = 0  # of workers on this batch
    alone: bool = False  # try it only while all other workers are idle
    stuck: bool = False  # a worker got stuck while reading the batch
    is_unreadable: bool = False  # workers keep dying while reading it, before they reach a document
    one_by_one: bool = False  # encode one document at a time
    abandoned: bool = False  # its remaining blocks are not needed
    _kills: int = 0
    _losses: int = 0
    _deaths_while_reading: int = 0
    _use_fallback_for: set[str] = field(default_factory=set)

    @property
    def received(self) -> int:
        return len(self.lengths)

    def order(self, skip_digests: frozenset[str]) -> WorkOrder:
        """Return the order to encode this batch. `skip_digests` counts only for the first order: encoding again has to
        give the same tokens."""
        self.trying = None
        self.done = False
        if self.skip_digests is None:
            self.skip_digests = skip_digests
        first_block = min(self.held, default=self.received)
        fallbacks = frozenset(self._use_fallback_for)
        return WorkOrder(
            self.batch, self.number, first_block, self.skip_digests, self.one_by_one, fallbacks, self.is_large
        )

    def fail(self, error: ShardError) -> None:
        """Note that the rest of the batch can't be encoded. The error takes the place of the missing blocks. If one of
        those was already output, its tokens are needed, and the error is raised now."""
        self.done, self.error = True, error
        lost = min((index for index, held in self.held.items() if not held.present), default=self.received)
        if lost < self.received - len(self.blocks):
            raise error
        while self.received > lost:
            self.held.pop(self.received - 1, None)
            self.lengths.pop()
            self.blocks.pop()

    def receive_block(self, index: int, block: EncodedBlock) -> WriteOrder | None:
        """Keep a block until its turn; return the order to write it if its placements are already known. The block
        clears the document that the worker announced last."""
        self.trying = None
        self._kills = 0
        again = index < self.received
        waiting = index - (self.received - len(self.blocks))  # its place among the blocks not yet output
        if not again:
            self.lengths.append(len(block.tokens))
            self.blocks.append(block)
        elif waiting >= 0:
            self.blocks[waiting] = block
            self.lengths[index] = len(block.tokens)
        elif len(block.tokens) != self.lengths[index]:
            raise WorkerError(
                f"The batch at position {self.batch.position} gave {len(block.tokens):,} tokens when it was "
                f"encoded again, but {self.lengths[index]:,} before.",
                "Everything finished is kept; rerun the same command to resume.",
            )
        if not isinstance(block.tokens, HeldTokens):
            return None
        if again and index not in self.held:
            return WriteOrder(self.number, index)  # already written
        held = self.held.setdefault(index, HeldBlock())
        held.present = True
        has_order = held.placements or held.is_placed
        return WriteOrder(self.number, index, held.placements, held.is_placed) if has_order else None

    def note_death(self, death: Death) -> Quarantined | None:
        """Count a worker that died on this batch. Return the document to quarantine, if any."""
        self.deaths += 1
        self.is_suspect = True
        self.note_loss(death)
        document, self.trying = self.trying, None
        if not self.one_by_one:
            self.one_by_one = self.deaths >= MAXIMUM_DEATHS
        elif death.kind is DeathKind.KILLED:
            self._kills += 1  # without a block in between
            if self._kills >= MAXIMUM_KILLS:
                place = f"at position {self.batch.position}"
                if document is not None:
                    row = f" in row {document.row:,}" if document.row is not None else ""
                    place += f", each time at or before a document of {document.text_bytes:,} bytes{row}"
                raise WorkerError(
                    f"{self._kills} workers were killed from outside on one batch, {place}; the last one "
                    f"{death.description}.",
                    "No document was left out. Find out what kills them (a program, a scheduler, a memory limit: "
                    "see --max-memory and --workers); rerun the same command to resume.",
                )
        elif death.kind is DeathKind.OUT_OF_MEMORY and not self.alone:
            self.alone = True
        elif document is None:
            self._deaths_while_reading += 1
            self.is_unreadable = self._deaths_while_reading >= MAXIMUM_DEATHS
            self.stuck |= death.kind is DeathKind.STUCK
        elif document.sha256 not in self._use_fallback_for:
            self._use_fallback_for.add(document.sha256)  # the other engine tries it next
        else:
            cause = f"{self.deaths} workers died on its batch; the last one {death.description}"
            self.quarantined.append(replace(document, cause=cause))
            return self.quarantined[-1]
        return None

    def note_loss(self, death: Death) -> None:
        """Count a worker that died with blocks of this batch; WorkerError after too many."""
        self._losses += bool(self.held)
        if self._losses >= MAXIMUM_LOSSES:
            raise WorkerError(
                f"{self._losses} workers died before they could write the tokens of the batch at position "
                f"{self.batch.position}; the last one {death.description}.",
                "Find out what ends them; rerun the same command to resume.",
            )


@dataclass(eq=False)
class FileTask:
    """A file to be finished, and the deaths of workers that tried."""

    number: int
    work: FileWork | None
    future: Future[Any] = field(default_factory=Future)
    deaths: DeathCount = field(default_factory=DeathCount)
    worker: Hashable | None = None  # that has it

    def finish(self, result: FileResult) -> None:
        if result.error is not None:
            self.future.set_exception(result.error)
        else:
            self.future.set_result(result.sha256)

    def note_death(self, death: Death) -> None:
        if self.deaths.add(death):
            raise WorkerError(
                f"Workers die while they {describe_work(self.work)}: the last one {death.description}.",
                "Everything finished is kept; rerun the same command to resume.",
            )


class FileTasks(Generic[Worker]):
    """All unfinished file tasks, and the worker that has each of them."""

    def __init__(self) -> None:
        self._tasks: dict[int, FileTask] = {}  # by number
        self._count = 0

    def add(self, work: FileWork) -> Future[Any]:
        task = self._tasks[self._count] = FileTask(self._count, work)
        self._count += 1
        return task.future

    def give_out(self, workers: Iterable[Worker]) -> Iterator[tuple[Worker, FileOrder]]:
        """Give every unassigned task to the worker with the fewest."""
        waiting = [task for task in self._tasks.values() if task.worker is None]
        available = list(workers) if waiting else []
        for task in waiting if available else []:
            worker = task.worker = min(available, key=self.count)
            yield worker, FileOrder(task.number, task.work)

    def count(self, worker: Worker) -> int:
        return sum(task.worker == worker for task in list(self._tasks.values()))  # the watchdog asks, too

    def finish(self, result: FileResult) -> None:
        self._tasks.pop(result.number).finish(result)

    def remove_worker(self, worker: Worker, death: Death | None = None) -> None:
        """Take back the tasks of a worker that is gone, and count its death."""
        for task in [task for task in self._tasks.values() if task.worker == worker]:
            task.worker = None
            if death is not None:
                task.note_death(death)
