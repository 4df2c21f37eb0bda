"""Number the tokens that blocks contribute to the stream. No I/O.

A *section* is the next piece of the stream: the kept tokens of a block or, in a mix, documents of several blocks in
turn (mix.py). The packer counts its tokens from 0; cursors and placements need their places in the blocks.

A *span* is tokens with the positions of their EOTs. The encoder records these positions, and cutting and joining shifts
them, so that no later stage needs to search for EOTs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Positions, Ranges, TokenBlock, Tokens

NO_POSITIONS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of a stream, and the positions of their EOTs."""

    tokens: Tokens
    eots: Positions

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def begins_with_eot(self) -> bool:
        return len(self.eots) > 0 and int(self.eots[0]) == 0

    @property
    def ends_with_eot(self) -> bool:
        return len(self.eots) > 0 and int(self.eots[-1]) == len(self) - 1

    def cut(self, begin: int, end: int) -> Span:
        first, last = np.searchsorted(self.eots, (begin, end))
        return Span(self.tokens[begin:end], self.eots[first:last] - begin)


def join_spans(spans: Sequence[Span]) -> Span:
    """Concatenate spans, at least one, which determines the dtype."""
    starts = np.cumsum([len(span) for span in spans]) - [len(span) for span in spans]
    moved = [span.eots + start for span, start in zip(spans, starts, strict=True)]
    return Span(np.concatenate([span.tokens for span in spans]), np.concatenate(moved))


@dataclass(frozen=True, slots=True)
class Section:
    """Ranges of blocks, joined. The blocks of each part are in order."""

    blocks: tuple[TokenBlock, ...]
    ranges: Ranges  # in the tokens of their block
    holders: Positions  # for each range, the number of its block
    firsts: Positions  # for each range, the number of its first token
    tokens: int
    eots: Positions  # the numbers of the EOTs
    # (tokens, block), ascending: the block has no tokens after the section's first `tokens`.
    ends: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, block: TokenBlock) -> Section:
        ranges, eots, tokens = kept_ranges(block), block.eots, len(block.tokens)
        firsts = holders = np.zeros(len(ranges), np.int64)
        if block.kept is not None:
            lengths = ranges[:, 1] - ranges[:, 0]
            firsts, tokens = np.cumsum(lengths) - lengths, int(lengths.sum())
            holder = np.searchsorted(ranges[:, 1], eots, side="right")  # the range that an EOT would be in
            eots, holder = eots[holder < len(ranges)], holder[holder < len(ranges)]
            offsets = eots - ranges[holder, 0]
            eots = (firsts[holder] + offsets)[offsets >= 0]
        return cls((block,), ranges, holders, firsts, tokens, eots, ((tokens, 0),))

    @property
    def finished(self) -> frozenset[int]:
        """The blocks without tokens in later sections."""
        return frozenset(block for _, block in self.ends)

    def find(self, numbers: Ranges) -> tuple[Ranges, Positions]:
        """Return the places of token ranges in the blocks, and the blocks' numbers; one range may become several."""
        if not len(numbers):
            return numbers, self.holders[:0]
        if len(self.ranges) == 1:  # the usual case without a mix
            return numbers + self.ranges[0, 0], np.repeat(self.holders, len(numbers))
        pieces = cut_ranges(numbers, self.firsts)
        rows = np.searchsorted(self.firsts, pieces[:, 0], side="right") - 1
        places: Ranges = pieces + (self.ranges[rows, 0] - self.firsts[rows])[:, None]
        return places, self.holders[rows]

    def last_places(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return each block with tokens from `begin` up to `end`, by its number, and the place after the last one."""
        if len(self.ranges) == 1:
            return [(int(self.holders[0]), int(self.ranges[0, 0]) + end)]
        ranges, holders = self.find(np.array([[begin, end]], np.int64))
        blocks, rows = np.unique(holders[::-1], return_index=True)  # in which row from the end each block is last
        return list(zip(blocks.tolist(), ranges[::-1][rows, 1].tolist(), strict=True))

    def holders_of_eots(self, begin: int, end: int) -> Positions:
        first, last = np.searchsorted(self.eots, (begin, end))
        return self.holders[np.searchsorted(self.firsts, self.eots[first:last], side="right") - 1]


def kept_ranges(block: TokenBlock) -> Ranges:
    """Return the ranges of a block's kept tokens; none is empty."""
    if block.kept is not None:
        return block.kept
    length = len(block.tokens)
    return np.array([(0, length)] if length else [], np.int64).reshape(-1, 2)


def cut_ranges(ranges: Ranges, places: Positions) -> Ranges:
    """Return the ranges, divided at each of the ascending places inside them."""
    begins, ends = ranges.T
    holder = np.searchsorted(ends, places, side="right")  # the range that a place would be in
    inside = holder < len(ranges)
    inside[inside] = begins[holder[inside]] < places[inside]
    # Two ascending runs, which a stable sort only has to merge.
    return np.sort(np.concatenate([ranges.ravel(), np.repeat(places[inside], 2)]), kind="stable").reshape(-1, 2)
