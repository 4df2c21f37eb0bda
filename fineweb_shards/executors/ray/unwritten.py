"""Keep which tokens belong where, until they are written: blocks by batch and number, placements by file.

No I/O. Who has the tokens of a block now is an Attempt; if that is lost, the block waits until another one
has made them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.types import Placement

Key = tuple[int, int]  # the numbers of a batch and of its block


@dataclass(eq=False)
class Attempt:
    """A task that encodes batches; later the object in Ray's store that has their tokens."""

    number: int
    orders: tuple[WorkOrder, ...] = ()
    tokens: Any = None  # the reference to that object
    keys: set[Key] = field(default_factory=set)  # of its blocks that are not written yet

    @property
    def text_bytes(self) -> int:
        """The size of the text to encode."""
        return sum(order.batch.size_bytes for order in self.orders)


@dataclass(eq=False)
class StoredBlock:
    """The tokens of a block: number `array` of what its attempt has."""

    key: Key
    size_bytes: int
    attempt: Attempt | None = None  # None: they were lost
    array: int = 0
    left: int | None = None  # placements that are not written yet; None: it is not known where they belong


@dataclass(frozen=True)
class Share:
    """What of a block belongs into one file."""

    block: StoredBlock
    placement: Placement


class Unwritten:
    """All blocks whose tokens are in Ray's store."""

    def __init__(self) -> None:
        self.blocks: dict[Key, StoredBlock] = {}
        self.unplaced_bytes = 0  # of blocks of which it is not known where they belong
        self.placed_bytes = 0
        self._shares: dict[str, list[Share]] = {}  # by file, in order; no file task has them yet
        self._waiting_bytes: dict[str, int] = {}  # of those, by file

    def receive(self, key: Key, attempt: Attempt, array: int, size_bytes: int) -> StoredBlock:
        """Note that an attempt has the tokens of a block; perhaps in place of one that was lost."""
        block = self.blocks.get(key)
        if block is None or block.left is None:
            self.forget([key])
            block = self.blocks[key] = StoredBlock(key, size_bytes)
            self.unplaced_bytes += size_bytes
        block.attempt, block.array = attempt, array
        attempt.keys.add(key)
        return block

    def place(self, key: Key, size_bytes: int, placements: Sequence[Placement]) -> StoredBlock:
        """Note where a block belongs, whether its tokens are there or were lost."""
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = StoredBlock(key, size_bytes)
        else:
            self.unplaced_bytes -= size_bytes
        block.left = len(placements)
        self.placed_bytes += size_bytes
        for placement in placements:
            path = placement.path
            self._shares.setdefault(path, []).append(Share(block, placement))
            self._waiting_bytes[path] = self._waiting_bytes.get(path, 0) + size_bytes
        return block

    def take(self, path: str, end: int | None = None) -> list[Share]:
        """Return and remove what belongs into a file, or what belongs before its byte `end`."""
        taken: list[Share] = []
        later: list[Share] = []
        for share in self._shares.pop(path, []):
            (taken if end is None or share.placement.offset < end else later).append(share)
        if later:
            self._shares[path] = later
        self._waiting_bytes[path] = sum(share.block.size_bytes for share in later)
        if not later:
            del self._waiting_bytes[path]
        return taken

    def fullest(self) -> tuple[str | None, int]:
        """Return the file that most bytes wait for, and how many."""
        path = max(self._waiting_bytes, key=self._waiting_bytes.__getitem__, default=None)
        return path, self._waiting_bytes[path] if path is not None else 0

    def note_written(self, block: StoredBlock) -> bool:
        """Note that a placement of a block is written; return whether it was the last one."""
        assert block.left is not None
        block.left -= 1
        return block.left <= 0

    def lose(self, attempt: Attempt) -> None:
        """Note that the tokens of an attempt are lost. Blocks that were not placed will be received again."""
        self.forget([key for key in attempt.keys if self.blocks[key].left is None])
        for key in attempt.keys:
            self.blocks[key].attempt = None
        attempt.keys.clear()

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget blocks: they are written, or nobody needs them."""
        for key in keys:
            block = self.blocks.pop(key, None)
            if block is None:
                continue
            if block.left is None:
                self.unplaced_bytes -= block.size_bytes
            else:
                self.placed_bytes -= block.size_bytes
            if block.attempt is not None:
                block.attempt.keys.discard(key)

    def forget_unplaced(self) -> None:
        """Forget the blocks of which it is not known where they belong: nobody will say so any more."""
        self.forget([key for key, block in self.blocks.items() if block.left is None])
