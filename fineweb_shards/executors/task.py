"""Track one batch: the blocks that have arrived, and the workers that died on it.

After three deaths the documents of the batch are encoded one by one (one_by_one.py). From then on it matters
how workers die (exit_cause.py) on the document that was announced last:

- crashed, or stuck: the document gets the other engine next; if that crashes a worker, too, the document is
  quarantined;
- out of memory: other programs may be the cause. The batch is tried alone, without any other worker; another
  death then counts as a crash;
- killed from outside: this says nothing about the document, which is never quarantined for it. After many
  kills without any progress the run stops, and can be resumed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

MAXIMUM_DEATHS = 3  # of workers on one batch, before its documents are encoded one by one
MAXIMUM_KILLS = 30  # from outside on one batch, without a block of it in between


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """An order for a worker: encode this batch, in this way."""

    batch: Batch
    first_block: int = 0  # the blocks before it have already arrived
    skip_digests: frozenset[str] = frozenset()  # SHA-256 of the texts of quarantined documents
    one_by_one: bool = False  # encode one document at a time, because one of them crashes workers
    use_fallback_for: frozenset[str] = frozenset()  # digests of documents for the other engine


@dataclass(eq=False)
class Task:
    """A batch, its blocks that have arrived, and the deaths of workers that encoded it."""

    batch: Batch
    number: int = 0  # in the order of the stream
    blocks: deque[EncodedBlock] = field(default_factory=deque)
    received: int = 0  # number of blocks that have arrived
    done: bool = False
    error: ShardError | None = None
    quarantined: list[Quarantined] = field(default_factory=list)  # not yet passed on with a block
    trying: Quarantined | None = None  # the document that was announced last
    deaths: int = 0  # of workers on this batch
    alone: bool = False  # no other worker may have work while it is tried
    stuck: bool = False  # a worker got stuck while it read the batch
    one_by_one: bool = False  # encode one document at a time
    _kills: int = 0
    _deaths_while_reading: int = 0
    _use_fallback_for: set[str] = field(default_factory=set)

    def order(self, skip_digests: frozenset[str]) -> WorkOrder:
        """Return the order for the worker that gets this batch now."""
        self.trying = None
        return WorkOrder(
            self.batch, self.received, skip_digests, self.one_by_one, frozenset(self._use_fallback_for)
        )

    def start_over(self) -> None:
        """Forget the blocks that have arrived, and that the batch was done."""
        self.blocks.clear()
        self.received, self.done, self.error = 0, False, None

    def receive_block(self, block: EncodedBlock) -> None:
        """Keep a block until its turn. Its worker has got past the document that it announced last."""
        self.trying = None
        self.received += 1
        self._kills = 0
        self.blocks.append(block)

    def take_block(self) -> EncodedBlock:
        """Return the next block, with the documents that were quarantined before it."""
        block = self.blocks.popleft()
        if self.quarantined:
            block = replace(block, quarantined=(*self.quarantined, *block.quarantined))
            self.quarantined = []
        return block

    def note_death(self, death: Death) -> Quarantined | None:
        """Count a worker that died on this batch. Return the document to quarantine, if any."""
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
            return self._suspect(document, death)
        return None

    def _suspect(self, document: Quarantined, death: Death) -> Quarantined | None:
        """Give a document to the other engine; if that was already tried, quarantine and return it."""
        if document.sha256 not in self._use_fallback_for:
            self._use_fallback_for.add(document.sha256)
            return None
        cause = f"{self.deaths} workers died on its batch; the last one {death.description}"
        quarantined = replace(document, cause=cause)
        self.quarantined.append(quarantined)
        return quarantined

    def _note_kill(self, document: Quarantined | None, death: Death) -> None:
        """Count a kill from outside; raise WorkerError after too many without a block in between."""
        self._kills += 1
        if self._kills < MAXIMUM_KILLS:
            return
        place = f"at position {self.batch.position}"
        if document is not None:
            row = f" in row {document.row:,}" if document.row is not None else ""
            place += f", each time at or before a document of {document.text_bytes:,} bytes{row}"
        raise WorkerError(
            f"{self._kills} workers were killed from outside on one batch, {place}; "
            f"the last one {death.description}.",
            "No document was left out. Find out what kills them (a program, a scheduler, a memory limit: "
            "see --max-memory and --workers); the same command goes on.",
        )

    @property
    def is_unreadable(self) -> bool:
        """Whether workers keep dying while they read the batch, before they reach a document."""
        return self._deaths_while_reading >= MAXIMUM_DEATHS
