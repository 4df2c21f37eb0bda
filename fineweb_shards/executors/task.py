"""A batch on its way through the workers: what has come of it, and what it does to them.

A batch that ends its worker three times is tried again carefully, document by document (careful.py). The
document that was being tried when a worker ended gets the other engine next; if that ends a worker too, it
goes to quarantine. So a worker that was killed from outside never costs a document.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from fineweb_shards.errors import ShardError
from fineweb_shards.executors.messages import Order
from fineweb_shards.types import Batch, EncodedBlock, Quarantined

MAXIMUM_DEATHS = 3  # of workers, over one batch, before it is looked at closely


@dataclass(eq=False)
class Task:
    batch: Batch
    blocks: deque[EncodedBlock] = field(default_factory=deque)
    received: int = 0
    done: bool = False
    error: ShardError | None = None
    quarantined: list[Quarantined] = field(default_factory=list)  # not yet told with a block
    trying: Quarantined | None = None  # the document that was announced last
    deaths: int = 0  # of workers
    _deaths_while_reading: int = 0
    _careful: bool = False
    _spared: set[str] = field(default_factory=set)

    def order(self, left_out: frozenset[str]) -> Order:
        """What to send to a worker."""
        self.trying = None
        return Order(self.batch, self.received, left_out, self._careful, frozenset(self._spared))

    def start_over(self) -> None:
        """Forget what has come of it."""
        self.blocks.clear()
        self.received, self.done, self.error = 0, False, None

    def take_block(self) -> EncodedBlock:
        """The next block, with the documents that were left out on the way to it."""
        block = self.blocks.popleft()
        if self.quarantined:
            block = replace(block, quarantined=(*self.quarantined, *block.quarantined))
            self.quarantined = []
        return block

    def note_death(self, cause: str) -> Quarantined | None:
        """A worker ended over this batch. Returns the document that goes to quarantine, if one does."""
        self.deaths += 1
        document, self.trying = self.trying, None
        if not self._careful:
            self._careful = self.deaths >= MAXIMUM_DEATHS
            return None
        if document is None:
            self._deaths_while_reading += 1
            return None
        if document.sha256 not in self._spared:
            self._spared.add(document.sha256)
            return None
        lost = replace(document, cause=f"{self.deaths} workers ended over its batch; the last one {cause}")
        self.quarantined.append(lost)
        return lost

    @property
    def is_hopeless(self) -> bool:
        """No document is to blame: workers end while the batch is read."""
        return self._deaths_while_reading >= MAXIMUM_DEATHS
