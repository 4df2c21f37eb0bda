"""A batch on its way through the workers: what has come of it, and what it does to them.

A batch that ends its worker three times is tried again document by document (one_by_one.py). Then it depends
on how workers end (death.py) over the document that was announced last:

- by their own doing, or doing nothing any more: it gets the other engine next; if that ends a worker too,
  it goes to quarantine;
- for want of memory: that may be the fault of other programs. The batch is tried alone, with all other
  workers gone; what happens then counts like a crash;
- killed from outside: that says nothing about the document, and never costs one. After a great many times
  without any progress the run stops, and can be resumed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.death import Death, DeathKind
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

MAXIMUM_DEATHS = 3  # of workers, over one batch, before it is looked at closely
MAXIMUM_KILLS = 30  # from outside, over one batch, without a block of it in between


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """What a worker is asked to do: to encode this batch, in this way."""

    batch: Batch
    first_block: int = 0  # the ones before it have arrived already
    skip_digests: frozenset[str] = frozenset()  # documents in quarantine, by the SHA-256 of their text
    one_by_one: bool = False  # one document at a time: something in here ends workers
    use_fallback_for: frozenset[str] = frozenset()  # documents to be tried with the other engine


@dataclass(eq=False)
class Task:
    """A batch, the blocks of it that have arrived, and what is known of workers that ended over it."""

    batch: Batch
    number: int = 0  # in the order of the stream
    blocks: deque[EncodedBlock] = field(default_factory=deque)
    received: int = 0
    done: bool = False
    error: ShardError | None = None
    quarantined: list[Quarantined] = field(default_factory=list)  # not yet told with a block
    trying: Quarantined | None = None  # the document that was announced last
    deaths: int = 0  # of workers
    alone: bool = False  # nobody else may work while it is tried
    stuck: bool = False  # a worker stopped doing anything while it read the batch
    one_by_one: bool = False  # one document at a time
    _kills: int = 0
    _deaths_while_reading: int = 0
    _use_fallback_for: set[str] = field(default_factory=set)

    def order(self, skip_digests: frozenset[str]) -> WorkOrder:
        """Make the order for the worker that gets this batch now."""
        self.trying = None
        return WorkOrder(
            self.batch, self.received, skip_digests, self.one_by_one, frozenset(self._use_fallback_for)
        )

    def start_over(self) -> None:
        """Forget the blocks that have arrived, and its end."""
        self.blocks.clear()
        self.received, self.done, self.error = 0, False, None

    def receive_block(self, block: EncodedBlock) -> None:
        """Keep a block until its turn. Whoever made it got past the document announced last."""
        self.trying = None
        self.received += 1
        self._kills = 0
        self.blocks.append(block)

    def take_block(self) -> EncodedBlock:
        """Hand out the next block, with the documents that were left out on the way to it."""
        block = self.blocks.popleft()
        if self.quarantined:
            block = replace(block, quarantined=(*self.quarantined, *block.quarantined))
            self.quarantined = []
        return block

    def note_death(self, death: Death) -> Quarantined | None:
        """Count a worker that ended over this batch. Returns the document that goes to quarantine, if any."""
        self.deaths += 1
        document, self.trying = self.trying, None
        if not self.one_by_one:
            self.one_by_one = self.deaths >= MAXIMUM_DEATHS
        elif death.kind is DeathKind.KILLED:
            self._note_kill(document, death)
        elif death.kind is DeathKind.OUT_OF_MEMORY and not self.alone:
            self.alone = True
        elif document is None:
            self._deaths_while_reading += 1
            self.stuck = self.stuck or death.kind is DeathKind.STUCK
        else:
            return self._blame(document, death)
        return None

    def _blame(self, document: Quarantined, death: Death) -> Quarantined | None:
        """Leave a document to the other engine; if that was tried already, to quarantine, and return it."""
        if document.sha256 not in self._use_fallback_for:
            self._use_fallback_for.add(document.sha256)
            return None
        words = f"{self.deaths} workers ended over its batch; the last one {death.words}"
        lost = replace(document, cause=words)
        self.quarantined.append(lost)
        return lost

    def _note_kill(self, document: Quarantined | None, death: Death) -> None:
        """Count a kill from outside; too many without a block in between end the run."""
        self._kills += 1
        if self._kills < MAXIMUM_KILLS:
            return
        place = f"at position {self.batch.position}"
        if document is not None:
            row = f" in row {document.row:,}" if document.row is not None else ""
            place += f", each time at or before a document of {document.text_bytes:,} bytes{row}"
        raise WorkerError(
            f"{self._kills} workers were ended from outside over one batch, {place}; "
            f"the last one {death.words}.",
            "No document was left out. Find out who ends them (a program, a scheduler, a limit of memory: "
            "see --max-memory and --workers); the same command goes on.",
        )

    @property
    def is_hopeless(self) -> bool:
        """No document is to blame: workers end while the batch is read."""
        return self._deaths_while_reading >= MAXIMUM_DEATHS
