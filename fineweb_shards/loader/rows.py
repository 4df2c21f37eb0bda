"""Cut a shard into rows: where each begins, and which tokens are in it.

A row is `seq_len` tokens and the one that follows them, the last target. Rows come from one shard; what is
left at its end is too short for one.

Aligned rows begin at a document and are filled with those that follow. The next row begins at the first
document after it: what is left of a document that was cut is skipped, as in modded-nanogpt, because no row
could begin with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fineweb_shards.loader.shards import Shard
from fineweb_shards.reading.document_starts import TokenSequence
from fineweb_shards.types import Positions, Tokens

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
