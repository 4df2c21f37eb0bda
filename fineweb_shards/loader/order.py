"""Which tokens are in which batch: in the order of build-nanogpt's DataLoaderLite, where each rank goes through all
shards as they come, or in rows, of which the ranks take a batch each in turn.

A row is `seq_len` tokens and the one that follows them, the last target. Rows come from one shard; what is left at its
end is too short for one. Aligned rows begin at a document and are filled with those that follow. The next row begins at
the first document after it: what is left of a document that was cut is skipped, as in modded-nanogpt, because no row
could begin with it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.loader.shards import LoaderSettings, Shard, Shards
from fineweb_shards.reading.token_file import TokenSequence
from fineweb_shards.types import Positions, Tokens

Rows = NDArray[np.int64]
Value = TypeVar("Value")


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


def align_rows(boundaries: Positions, tokens: int, seq_len: int) -> Positions:
    """Return where aligned rows begin, given where documents do."""
    following = boundaries.searchsorted(boundaries + seq_len)  # the first document after each row
    begins = []
    place = 0
    while place < len(boundaries) and (begin := int(boundaries[place])) + seq_len < tokens:
        begins.append(begin)
        place = int(following[place])
    return np.array(begins, np.int64)


class Latest(Generic[Value]):
    """The last two values that `make` has made: a batch is rarely from more shards. A pickle has none."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self._kept: dict[Any, Value] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make, "_kept": {}}  # a mapped shard would be pickled with all its tokens

    def __getitem__(self, key: Any) -> Value:
        if key not in self._kept:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._make(key)
        return self._kept[key]


class Order(ABC):
    """Which tokens are in which batch of which epoch, for one rank.

    It is a function of the shards and the settings alone. Shards that a build adds come after the others, so that all
    ranks, and all workers of a DataLoader, have the same order whenever they see a new one.
    """

    # Whether the rows of all ranks together depend on world_size x batch_size only, not on each of the two.
    any_world_size: ClassVar[bool] = False

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        self._shards, self._settings, self._rank = shards, settings, rank
        self._ends: list[int] = []  # of what was counted of each shard so far, in the order of the epoch

    @abstractmethod
    def has(self, epoch: int, number: int) -> bool:
        """Return whether an epoch has a batch of this number, on all ranks. May wait for a build."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """Return how many batches an epoch has. Waits for the end of a build."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        """Return inputs and targets of a batch, for which `has` was true."""

    @property
    def _counted(self) -> int:
        """The number of this rank's batches, or of the rows, in the shards that were counted."""
        return self._ends[-1] if self._ends else 0

    def _find(self, number: int) -> tuple[int, int]:
        """Return in which shard, by its turn, a counted batch or row is, and its number there."""
        turn = bisect_right(self._ends, number)
        return turn, number - (self._ends[turn - 1] if turn else 0)


class SequentialOrder(Order):
    """Batches of tokens that follow each other, the ranks side by side; the same in every epoch."""

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        super().__init__(shards, settings, rank)
        self._size, self._world_size = settings.batch_size * settings.seq_len, settings.world_size
        # The last rank has the fewest. All stop there: with different numbers, ranks would wait for each other for
        # ever.
        self._batches = 0
        self._tokens = Latest(self._map)

    def has(self, epoch: int, number: int) -> bool:
        while number >= self._batches and self._shards.has(len(self._ends)):
            tokens = self._shards.known[len(self._ends)].file.tokens
            self._ends.append(self._counted + self._count_batches(tokens, self._rank))
            self._batches += self._count_batches(tokens, self._world_size - 1)
        return number < self._batches

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._batches

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        shard, step = self._find(number)
        begin = self._size * (step * self._world_size + self._rank)
        tokens = self._tokens[shard][begin : begin + self._size + 1].astype(np.int64)
        return tokens[:-1], tokens[1:].copy()  # a copy: changing the targets must not change the inputs

    def _count_batches(self, tokens: int, rank: int) -> int:
        """Count the batches that DataLoaderLite takes from a shard: one without a check, and more as long as another
        step of all ranks fits after the last."""
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

    If a build is followed, it may add shards in the first epoch: they are then taken as they come, and also if they are
    all there, because the order must not depend on the time.
    """

    any_world_size = True

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        super().__init__(shards, settings, rank)
        self._seq_len = settings.seq_len
        self._shuffle = None if settings.seed is None else settings.shuffle
        self._rows_per_step = settings.world_size * settings.batch_size  # of all ranks
        self._epoch = 0
        self._turns: list[int] | None = None  # the shards in the order of the epoch; None: as they come
        self._rows = Latest(self._cut)

    def has(self, epoch: int, number: int) -> bool:
        if epoch != self._epoch:
            self._epoch, self._ends, self._turns = epoch, [], None
        needed = (number + 1) * self._rows_per_step
        while needed > self._counted and self._has_turn(len(self._ends)):
            shard = self._shard(len(self._ends))
            if self._settings.align:
                rows = len(self._rows[self._epoch, shard][1])
            else:
                rows = self._count_unaligned(self._shards.known[shard].file.tokens)
            self._ends.append(self._counted + rows)
        return needed <= self._counted

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._counted // self._rows_per_step

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        size = self._settings.batch_size
        first = number * self._rows_per_step + self._rank * size
        rows = []
        for row in range(first, first + size):
            turn, row_in_shard = self._find(row)
            stream, begins = self._rows[self._epoch, self._shard(turn)]
            begin = int(begins[row_in_shard])
            rows.append(stream.read(begin, begin + self._seq_len + 1))
        tokens = np.stack(rows).astype(np.int64)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    def _count_unaligned(self, tokens: int) -> int:
        """Return how many rows that many tokens have, which no shuffling changes unless rows are aligned."""
        return max(0, tokens - 1) // self._seq_len

    def _has_turn(self, turn: int) -> bool:
        """Return whether the epoch has another shard."""
        if self._epoch == 0 and self._settings.follow:
            return self._shards.has(turn)
        if self._turns is None:
            while self._shards.has(len(self._shards.known)):  # a build must be complete before epoch 2
                pass
            turns = np.arange(len(self._shards.known))
            if self._settings.seed is not None:
                turns = np.random.default_rng([self._settings.seed, self._epoch]).permutation(len(turns))
            self._turns = turns.tolist()
        return turn < len(self._turns)

    def _shard(self, turn: int) -> int:
        return turn if self._turns is None else self._turns[turn]

    def _cut(self, key: tuple[int, int]) -> tuple[Stream, Positions]:
        """Return the tokens of a shard in the order of an epoch, and where its rows begin in them."""
        epoch, number = key
        known = self._shards.known
        # Begin to fetch the shard that comes after this one in the epoch.
        turns = range(len(known)) if self._turns is None else self._turns
        following = turns.index(number) + 1
        if following < len(turns):
            known[turns[following]].fetch_ahead()
        generator = np.random.default_rng([self._settings.seed or 0, epoch, number])
        stream, boundaries = self._arrange(known[number], generator)
        if self._settings.align:
            begins = align_rows(boundaries, len(stream), self._seq_len)
        else:
            begins = np.arange(self._count_unaligned(len(stream)), dtype=np.int64) * self._seq_len
        if self._shuffle == "rows":
            begins = begins[generator.permutation(len(begins))]
        return stream, begins

    def _arrange(self, shard: Shard, generator: np.random.Generator) -> tuple[Stream, Positions]:
        """Return the shard's tokens in the order in which they are cut, and where documents begin in it."""
        tokens = shard.map()
        if self._shuffle != "documents":
            boundaries = shard.document_starts() if self._settings.align else np.empty(0, np.int64)
            return Stream(tokens, np.array([0]), np.array([len(tokens)])), boundaries
        begins = shard.document_starts()
        if not self._settings.align and (not len(begins) or begins[0]):
            # The rest of a document of the shard before.
            begins = np.concatenate([np.zeros(1, np.int64), begins])
        ends = np.append(begins[1:], len(tokens))[: len(begins)]
        order = generator.permutation(len(begins))
        shuffled = Stream(tokens, begins[order], ends[order])
        return shuffled, shuffled.boundaries[:-1]
