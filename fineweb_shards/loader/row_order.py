"""The order of batches that are made of rows: the ranks take turns, a batch each."""

from __future__ import annotations

import sys
from bisect import bisect_right

import numpy as np

from fineweb_shards.loader.latest import Latest
from fineweb_shards.loader.order import Order, Rows
from fineweb_shards.loader.rows import RowRule, ShardRows
from fineweb_shards.loader.shards import Shards
from fineweb_shards.types import Tokens


class RowOrder(Order):
    """All rows of all shards. With a seed, shards and what is in them are shuffled for every epoch.

    `grows` says that a build may add shards in the first epoch: it then takes them as they come, and also if
    they are all there, because the order must not depend on the time.
    """

    any_ranks = True

    def __init__(
        self,
        shards: Shards,
        rule: RowRule,
        batch_size: int,
        rank: int,
        ranks: int,
        *,
        seed: int | None,
        grows: bool,
    ) -> None:
        self._shards = shards
        self._rule = rule
        self._batch_size, self._rank, self._ranks = batch_size, rank, ranks
        self._seed, self._grows = seed, grows
        self._rows = Latest(self._cut)
        self._start(0)

    def has(self, epoch: int, number: int) -> bool:
        if epoch != self._epoch:
            self._start(epoch)
        needed = (number + 1) * self._ranks * self._batch_size
        while needed > self._counted and self._has_turn(len(self._ends)):
            self._ends.append(self._counted + self._count_rows(len(self._ends)))
        return needed <= self._counted

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._counted // (self._ranks * self._batch_size)

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        first = (number * self._ranks + self._rank) * self._batch_size
        rows = [self._row(place) for place in range(first, first + self._batch_size)]
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
            self._turns = self._shuffle_shards()
        return turn < len(self._turns)

    def _shuffle_shards(self) -> list[int]:
        while self._shards.has(len(self._shards.known)):  # a build must be complete before the second epoch
            pass
        shards = len(self._shards.known)
        if self._seed is None:
            return [*range(shards)]
        order: list[int] = np.random.default_rng([self._seed, self._epoch]).permutation(shards).tolist()
        return order

    def _count_rows(self, turn: int) -> int:
        shard = self._shard(turn)
        if self._rule.aligned:
            return len(self._rows[self._epoch, shard])
        return self._rule.count_unaligned(self._shards.known[shard].tokens)

    def _row(self, place: int) -> Tokens:
        """Return the row at this place of the epoch."""
        turn = bisect_right(self._ends, place)
        return self._rows[self._epoch, self._shard(turn)][place - (self._ends[turn - 1] if turn else 0)]

    def _shard(self, turn: int) -> int:
        return turn if self._turns is None else self._turns[turn]

    def _cut(self, key: tuple[int, int]) -> ShardRows:
        epoch, shard = key
        self._fetch_after(shard)
        generator = np.random.default_rng([self._seed or 0, epoch, shard])
        return self._rule.cut(self._shards.known[shard], generator)

    def _fetch_after(self, shard: int) -> None:
        """Begin to fetch the shard that comes after this one in the epoch."""
        turn = 1 + (shard if self._turns is None else self._turns.index(shard))
        known = self._shards.known
        if turn < (len(known) if self._turns is None else len(self._turns)):
            known[self._shard(turn)].fetch_ahead()
