"""Decide which tokens are in which batch: in the order of build-nanogpt's DataLoaderLite, where each rank reads all
shards in order, or in rows, of which the ranks take a batch each in turn.

A row is `seq_len` tokens plus the next one, the last target. A row comes from a single shard; the rest at the end of a
shard is dropped. An aligned row begins at a document and continues with the following ones. The next row begins at the
first document after it: the rest of the truncated document is skipped, as in modded-nanogpt.
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
    """Consecutive ranges of a shard's tokens, copied only when they are read."""

    def __init__(self, tokens: TokenSequence, begins: Positions, ends: Positions) -> None:
        self._tokens, self._begins, self._ends = tokens, begins, ends
        self.boundaries: Positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])

    def __len__(self) -> int:
        return int(self.boundaries[-1])

    def read(self, begin: int, end: int) -> Tokens:
        first = int(self.boundaries.searchsorted(begin, "right")) - 1
        last = int(self.boundaries.searchsorted(end, "left"))
        pieces = []
        for place in range(first, last):
            skipped = max(0, begin - int(self.boundaries[place]))
            beyond = max(0, int(self.boundaries[place + 1]) - end)
            pieces.append(self._tokens[self._begins[place] + skipped : self._ends[place] - beyond])
        return np.concatenate(pieces)


class Latest(Generic[Value]):
    """Caches the last two values of `make`, because a batch rarely spans more shards."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self._kept: dict[Any, Value] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make, "_kept": {}}  # pickling a mapped shard would copy all its tokens

    def __getitem__(self, key: Any) -> Value:
        if key not in self._kept:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._make(key)
        return self._kept[key]


class Order(ABC):
    """The tokens of every batch of every epoch, for one rank.

    The order depends only on the shards and the settings. Shards added by a build come last, so that all ranks, and all
    workers of a DataLoader, have the same order no matter when they see a new one.
    """

    # Whether the rows of all ranks together depend only on the product world_size x batch_size.
    any_world_size: ClassVar[bool] = False

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        self._shards, self._settings, self._rank = shards, settings, rank
        self._ends: list[int] = []  # cumulative batches or rows of the shards counted so far, in epoch order
        self._batches = 0  # that all ranks have in these

    @abstractmethod
    def has(self, epoch: int, number: int) -> bool:
        """Return whether an epoch has a batch of this number, on all ranks. May wait for a build."""

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch. Waits for the end of a build."""
        self.has(epoch, sys.maxsize)
        return self._batches

    @abstractmethod
    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        """Return inputs and targets of a batch for which `has` returned True."""

    @property
    def _counted(self) -> int:
        """The number of this rank's batches, or of rows, in the shards counted so far."""
        return self._ends[-1] if self._ends else 0

    def _find(self, number: int) -> tuple[int, int]:
        """Return the turn of the shard of a counted batch or row, and its number in that shard."""
        turn = bisect_right(self._ends, number)
        return turn, number - (self._ends[turn - 1] if turn else 0)


class SequentialOrder(Order):
    """Batches of consecutive tokens, the ranks side by side; the same in every epoch."""

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        super().__init__(shards, settings, rank)
        self._size, self._world_size = settings.batch_size * settings.seq_len, settings.world_size
        self._tokens = Latest(self._map)

    def has(self, epoch: int, number: int) -> bool:
        while number >= self._batches and self._shards.has(len(self._ends)):
            tokens = self._shards.known[len(self._ends)].file.tokens
            self._ends.append(self._counted + self._count_batches(tokens, self._rank))
            # The last rank has the fewest, and all stop there: otherwise ranks would wait for each other forever.
            self._batches += self._count_batches(tokens, self._world_size - 1)
        return number < self._batches

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        shard, step = self._find(number)
        begin = self._size * (step * self._world_size + self._rank)
        tokens = self._tokens[shard][begin : begin + self._size + 1].astype(np.int64)
        return tokens[:-1], tokens[1:].copy()  # a copy: changing the targets must not change the inputs

    def _count_batches(self, tokens: int, rank: int) -> int:
        """Return the number of batches that DataLoaderLite takes from a shard: the first without a check, then more
        while another step of all ranks fits."""
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
    """All rows of all shards. With a seed, shards and their rows or documents are shuffled for every epoch.

    In the first epoch of a followed build, which may add shards, they are read in the order in which they were made,
    even if all exist already: the order must not depend on timing.
    """

    any_world_size = True

    def __init__(self, shards: Shards, settings: LoaderSettings, rank: int) -> None:
        super().__init__(shards, settings, rank)
        self._seq_len = settings.seq_len
        self._shuffle = None if settings.seed is None else settings.shuffle
        self._rows_per_step = settings.world_size * settings.batch_size  # of all ranks
        self._epoch = 0
        self._turns: list[int] | None = None  # the shards in epoch order; None: in the order they were made
        self._rows = Latest(self._cut)

    def has(self, epoch: int, number: int) -> bool:
        if epoch != self._epoch:
            self._epoch, self._ends, self._batches, self._turns = epoch, [], 0, None
        while number >= self._batches and self._has_turn(len(self._ends)):
            shard = self._shard(len(self._ends))
            if self._settings.align:
                rows = len(self._rows[self._epoch, shard][1])
            else:
                rows = self._count_unaligned(self._shards.known[shard].file.tokens)
            self._ends.append(self._counted + rows)
            self._batches = self._counted // self._rows_per_step
        return number < self._batches

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
        """Return the number of unaligned rows in that many tokens, which shuffling does not change."""
        return max(0, tokens - 1) // self._seq_len

    def _has_turn(self, turn: int) -> bool:
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
        """Return the tokens of a shard in the order of an epoch, and the starts of its rows."""
        epoch, number = key
        known = self._shards.known
        # Start fetching the next shard of the epoch.
        turns = range(len(known)) if self._turns is None else self._turns
        following = turns.index(number) + 1
        if following < len(turns):
            known[turns[following]].fetch_ahead()
        generator = np.random.default_rng([self._settings.seed or 0, epoch, number])
        stream, documents = self._arrange(known[number], generator)
        tokens = len(stream)
        if self._settings.align:
            next_document = documents.searchsorted(documents + self._seq_len)  # the first one after each row
            aligned, place = [], 0
            while place < len(documents) and (begin := int(documents[place])) + self._seq_len < tokens:
                aligned.append(begin)
                place = int(next_document[place])
            begins = np.array(aligned, np.int64)
        else:
            begins = np.arange(self._count_unaligned(tokens), dtype=np.int64) * self._seq_len
        if self._shuffle == "rows":
            begins = begins[generator.permutation(len(begins))]
        return stream, begins

    def _arrange(self, shard: Shard, generator: np.random.Generator) -> tuple[Stream, Positions]:
        """Return the shard's tokens in the order in which they are cut into rows, and the starts of documents."""
        tokens = shard.map()
        if self._shuffle != "documents":
            documents = shard.document_starts() if self._settings.align else np.empty(0, np.int64)
            return Stream(tokens, np.array([0]), np.array([len(tokens)])), documents
        begins = shard.document_starts()
        if not self._settings.align and (not len(begins) or begins[0]):
            begins = np.concatenate([np.zeros(1, np.int64), begins])  # the rest of the previous shard's last document
        ends = np.append(begins[1:], len(tokens))[: len(begins)]
        order = generator.permutation(len(begins))
        shuffled = Stream(tokens, begins[order], ends[order])
        return shuffled, shuffled.boundaries[:-1]
