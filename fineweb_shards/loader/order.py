"""Which tokens are in which batch: in the order of build-nanogpt's DataLoaderLite, where each rank goes
through all shards as they come, or in rows, of which the ranks take a batch each in turn.

A row is `seq_len` tokens and the one that follows them, the last target. Rows come from one shard; what is
left at its end is too short for one. Aligned rows begin at a document and are filled with those that follow.
The next row begins at the first document after it: what is left of a document that was cut is skipped, as in
modded-nanogpt, because no row could begin with it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.loader.shards import Shard, Shards
from fineweb_shards.reading.token_file import TokenSequence
from fineweb_shards.types import Positions, Tokens

Rows = NDArray[np.int64]
Shuffle = Literal["rows", "documents"]


@dataclass(frozen=True, slots=True)
class RowRule:
    """How a shard is cut into rows, and what of it is shuffled."""

    seq_len: int
    aligned: bool
    shuffle: Shuffle | None  # None: nothing

    def count_unaligned(self, tokens: int) -> int:
        """Return how many rows that many tokens have, which no shuffling changes unless rows are aligned."""
        return max(0, tokens - 1) // self.seq_len

    def cut(self, shard: Shard, generator: np.random.Generator) -> ShardRows:
        """Cut a shard; `generator` decides about the order."""
        stream, boundaries = self._arrange(shard, generator)
        if self.aligned:
            begins = align_rows(boundaries, len(stream), self.seq_len)
        else:
            begins = np.arange(self.count_unaligned(len(stream)), dtype=np.int64) * self.seq_len
        if self.shuffle == "rows":
            begins = begins[generator.permutation(len(begins))]
        return ShardRows(stream, begins, self.seq_len)

    def _arrange(self, shard: Shard, generator: np.random.Generator) -> tuple[Stream, Positions]:
        """Return the shard's tokens in the order in which they are cut, and where documents begin in it."""
        tokens = shard.map()
        everything = Stream(tokens, np.array([0]), np.array([len(tokens)]))
        if self.shuffle != "documents":
            return everything, shard.document_starts() if self.aligned else np.empty(0, np.int64)
        begins = shard.document_starts()
        if not self.aligned and (not len(begins) or begins[0]):
            # The rest of a document of the shard before.
            begins = np.concatenate([np.zeros(1, np.int64), begins])
        ends = np.append(begins[1:], len(tokens))[: len(begins)]
        order = generator.permutation(len(begins))
        shuffled = Stream(tokens, begins[order], ends[order])
        return shuffled, shuffled.boundaries[:-1]


class Stream:
    """Ranges of a shard's tokens, one after the other. Tokens are only copied when they are read."""

    def __init__(self, tokens: TokenSequence, begins: Positions, ends: Positions) -> None:
        self._tokens, self._begins, self._ends = tokens, begins, ends
        self.boundaries: Positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])

    def __len__(self) -> int:
        return int(self.boundaries[-1])

    def read(self, begin: int, end: int) -> Tokens:
        """Return the tokens from `begin` to `end`."""
        first = int(self.boundaries.searchsorted(begin, "right")) - 1
        last = int(self.boundaries.searchsorted(end, "left"))
        pieces = []
        for place in range(first, last):
            skipped = max(0, begin - int(self.boundaries[place]))
            beyond = max(0, int(self.boundaries[place + 1]) - end)
            pieces.append(self._tokens[self._begins[place] + skipped : self._ends[place] - beyond])
        return np.concatenate(pieces)


class ShardRows:
    """The rows of one shard, in the order of one epoch."""

    def __init__(self, stream: Stream, begins: Positions, seq_len: int) -> None:
        self._stream, self._begins, self._seq_len = stream, begins, seq_len

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, number: int) -> Tokens:
        begin = int(self._begins[number])
        return self._stream.read(begin, begin + self._seq_len + 1)


def align_rows(boundaries: Positions, tokens: int, seq_len: int) -> Positions:
    """Return where aligned rows begin, given where documents do."""
    following = boundaries.searchsorted(boundaries + seq_len)  # the first document after each row
    begins = []
    place = 0
    while place < len(boundaries) and (begin := int(boundaries[place])) + seq_len < tokens:
        begins.append(begin)
        place = int(following[place])
    return np.array(begins, np.int64)


class Order(ABC):
    """Which tokens are in which batch of which epoch, for one rank.

    It is a function of the shards and the settings alone. Shards that a build adds come after the others, so
    that all ranks, and all workers of a DataLoader, have the same order whenever they see a new one.
    """

    # Whether the rows of all ranks together depend on world_size x batch_size only, not on each of the two.
    any_world_size: ClassVar[bool] = False

    @abstractmethod
    def has(self, epoch: int, number: int) -> bool:
        """Return whether an epoch has a batch of this number, on all ranks. May wait for a build."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """Return how many batches an epoch has. Waits for the end of a build."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        """Return inputs and targets of a batch, for which `has` was true."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Latest(Generic[Key, Value]):
    """The last two values that `make` has made: a batch is rarely from more shards. A pickle has none."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._kept: dict[Key, Value] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make, "_kept": {}}  # a mapped shard would be pickled with all its tokens

    def __getitem__(self, key: Key) -> Value:
        if key not in self._kept:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._make(key)
        return self._kept[key]


class SequentialOrder(Order):
    """Batches of `size` tokens that follow each other, the ranks side by side; the same in every epoch."""

    def __init__(self, shards: Shards, size: int, rank: int, world_size: int) -> None:
        self._shards = shards
        self._size, self._rank, self._world_size = size, rank, world_size
        self._ends: list[int] = []  # of this rank's batches in each shard, as far as they were counted
        # The last rank has the fewest. All stop there: with different numbers, ranks would wait for each
        # other for ever.
        self._batches = 0
        self._tokens = Latest(self._map)

    def has(self, epoch: int, number: int) -> bool:
        while number >= self._batches and self._shards.has(len(self._ends)):
            tokens = self._shards.known[len(self._ends)].tokens
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + self._count_batches(tokens, self._rank))
            self._batches += self._count_batches(tokens, self._world_size - 1)
        return number < self._batches

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._batches

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        shard = bisect_right(self._ends, number)
        step = number - (self._ends[shard - 1] if shard else 0)
        begin = self._size * (step * self._world_size + self._rank)
        tokens = self._tokens[shard][begin : begin + self._size + 1].astype(np.int64)
        return tokens[:-1], tokens[1:].copy()  # a copy: changing the targets must not change the inputs

    def _count_batches(self, tokens: int, rank: int) -> int:
        """Count the batches that DataLoaderLite takes from a shard: one without a check, and more as long as
        another step of all ranks fits after the last."""
        if tokens < self._size * (rank + 1) + 1:
            return 0
        return max(1, (tokens - 1 - self._size * rank) // (self._size * self._world_size))

    def _map(self, shard: int) -> TokenSequence:
        known = self._shards.known
        tokens = known[shard].map()
        if shard + 1 < len(known):
            known[shard + 1].fetch_ahead()
        return tokens


class RowOrder(Order):
    """All rows of all shards. With a seed, shards and what is in them are shuffled for every epoch.

    `grows` says that a build may add shards in the first epoch: it then takes them as they come, and also if
    they are all there, because the order must not depend on the time.
    """

    any_world_size = True

    def __init__(
        self,
        shards: Shards,
        rule: RowRule,
        batch_size: int,
        rank: int,
        world_size: int,
        *,
        seed: int | None,
        grows: bool,
    ) -> None:
        self._shards = shards
        self._rule = rule
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._seed, self._grows = seed, grows
        self._rows = Latest(self._cut)
        self._start(0)

    def has(self, epoch: int, number: int) -> bool:
        if epoch != self._epoch:
            self._start(epoch)
        needed = (number + 1) * self._world_size * self._batch_size
        while needed > self._counted and self._has_turn(len(self._ends)):
            shard = self._shard(len(self._ends))
            if self._rule.aligned:
                rows = len(self._rows[self._epoch, shard])
            else:
                rows = self._rule.count_unaligned(self._shards.known[shard].tokens)
            self._ends.append(self._counted + rows)
        return needed <= self._counted

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._counted // (self._world_size * self._batch_size)

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        first = (number * self._world_size + self._rank) * self._batch_size
        rows = []
        for place in range(first, first + self._batch_size):
            turn = bisect_right(self._ends, place)
            number_in_shard = place - (self._ends[turn - 1] if turn else 0)
            rows.append(self._rows[self._epoch, self._shard(turn)][number_in_shard])
        tokens = np.stack(rows).astype(np.int64)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    @property
    def _counted(self) -> int:
        """The number of rows in the shards that were counted."""
        return self._ends[-1] if self._ends else 0

    def _start(self, epoch: int) -> None:
        self._epoch = epoch
        self._ends: list[int] = []  # of the rows of each shard, in the order of the epoch
        self._turns: list[int] | None = None  # the shards in that order; None: as they come

    def _has_turn(self, turn: int) -> bool:
        """Return whether the epoch has another shard."""
        if self._epoch == 0 and self._grows:
            return self._shards.has(turn)
        if self._turns is None:
            while self._shards.has(len(self._shards.known)):  # a build must be complete before epoch 2
                pass
            turns = np.arange(len(self._shards.known))
            if self._seed is not None:
                turns = np.random.default_rng([self._seed, self._epoch]).permutation(len(turns))
            self._turns = turns.tolist()
        return turn < len(self._turns)

    def _shard(self, turn: int) -> int:
        return turn if self._turns is None else self._turns[turn]

    def _cut(self, key: tuple[int, int]) -> ShardRows:
        epoch, shard = key
        known = self._shards.known
        # Begin to fetch the shard that comes after this one in the epoch.
        turn = 1 + (shard if self._turns is None else self._turns.index(shard))
        if turn < (len(known) if self._turns is None else len(self._turns)):
            known[self._shard(turn)].fetch_ahead()
        return self._rule.cut(known[shard], np.random.default_rng([self._seed or 0, epoch, shard]))
