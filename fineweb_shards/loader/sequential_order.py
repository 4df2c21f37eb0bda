"""The order of build-nanogpt's DataLoaderLite: each rank goes through all shards in their order."""

from __future__ import annotations

import sys
from bisect import bisect_right

import numpy as np

from fineweb_shards.loader.latest import Latest
from fineweb_shards.loader.order import Order, Rows
from fineweb_shards.loader.shards import Shards
from fineweb_shards.reading.document_starts import TokenSequence


class SequentialOrder(Order):
    """Batches of `size` tokens that follow each other, the ranks side by side; the same in every epoch."""

    def __init__(self, shards: Shards, size: int, rank: int, ranks: int) -> None:
        self._shards = shards
        self._size, self._rank, self._ranks = size, rank, ranks
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
            self._batches += self._count_batches(tokens, self._ranks - 1)
        return number < self._batches

    def count(self, epoch: int) -> int:
        self.has(epoch, sys.maxsize)
        return self._batches

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        shard = bisect_right(self._ends, number)
        step = number - (self._ends[shard - 1] if shard else 0)
        begin = self._size * (step * self._ranks + self._rank)
        tokens = self._tokens[shard][begin : begin + self._size + 1].astype(np.int64)
        return tokens[:-1], tokens[1:].copy()  # a copy: changing the targets must not change the inputs

    def _count_batches(self, tokens: int, rank: int) -> int:
        """Count the batches that DataLoaderLite takes from a shard: one without a check, and more as long as
        another step of all ranks fits behind the last."""
        if tokens < self._size * (rank + 1) + 1:
            return 0
        return max(1, (tokens - 1 - self._size * rank) // (self._size * self._ranks))

    def _map(self, shard: int) -> TokenSequence:
        known = self._shards.known
        tokens = known[shard].map()
        if shard + 1 < len(known):
            known[shard + 1].fetch_ahead()
        return tokens
