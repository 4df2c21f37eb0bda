"""Number the tokens that blocks contribute to the stream. No I/O.

A *section* is the next piece of the stream: of a single part it is what is kept of a block; in a mix, documents of
several blocks by turns (mix.py). The packer counts its tokens from 0; cursors and placements need the places in the
blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.types import Positions, Ranges, TokenBlock


@dataclass(frozen=True, slots=True)
class Section:
    """Ranges of blocks, one after the other. The blocks of one part are in their order."""

    blocks: tuple[TokenBlock, ...]
    ranges: Ranges  # in the tokens of their block
    holders: Positions  # the number of that block
    firsts: Positions  # the number of the first token of each range
    tokens: int
    eots: Positions  # the numbers of those tokens that are EOTs
    # After how many tokens each block is behind, with what is left out of it; more than there are: only at the end.
    ends: tuple[tuple[int, int], ...]
    finished: frozenset[int]  # the blocks of which nothing comes later

    @classmethod
    def of(cls, block: TokenBlock) -> Section:
        """Return what is kept of one block."""
        ranges, eots = block.kept, block.eots
        if ranges is None:
            ranges = np.array([(0, len(block.tokens))] if len(block.tokens) else [], np.int64).reshape(-1, 2)
            firsts = np.zeros(len(ranges), np.int64)
            tokens = len(block.tokens)
        else:
            lengths = ranges[:, 1] - ranges[:, 0]
            firsts, tokens = np.cumsum(lengths) - lengths, int(lengths.sum())
            holder = np.searchsorted(ranges[:, 1], eots, side="right")  # the range that an EOT would be in
            eots, holder = eots[holder < len(ranges)], holder[holder < len(ranges)]
            offsets = eots - ranges[holder, 0]
            eots = (firsts[holder] + offsets)[offsets >= 0]
        last = int(ranges[-1, 1]) if len(ranges) else 0
        ends = ((tokens + (not is_safe_end(block, last)), 0),)
        return cls((block,), ranges, np.zeros(len(ranges), np.int64), firsts, tokens, eots, ends, frozenset({0}))

    def find(self, numbers: Ranges) -> tuple[Ranges, Positions]:
        """Return where ranges of tokens are in the blocks, and the numbers of these; one range may become several."""
        if not len(numbers):
            return numbers, self.holders[:0]
        # Cut the ranges wherever one of ours begins.
        begins, ends = numbers.T
        cuts = self.firsts[1:]
        holder = np.searchsorted(ends, cuts, side="right")
        inside = holder < len(numbers)
        inside[inside] &= begins[holder[inside]] < cuts[inside]
        edges = np.sort(np.concatenate([begins, ends, cuts[inside], cuts[inside]]), kind="stable").reshape(-1, 2)
        last = np.searchsorted(self.firsts, edges[:, 0], side="right") - 1
        places: Ranges = edges + (self.ranges[last, 0] - self.firsts[last])[:, None]
        return places, self.holders[last]

    def places_after(self, number: int) -> list[tuple[int, int]]:
        """Return, for each block that the first `number` tokens have any of, its number and the place after them."""
        rows = int(np.searchsorted(self.firsts, number))  # that begin before it
        last_rows = np.full(len(self.blocks), -1)
        last_rows[self.holders[:rows]] = np.arange(rows)
        places = []
        for holder in np.flatnonzero(last_rows >= 0).tolist():
            begin, end = self.ranges[last_rows[holder]].tolist()
            places.append((holder, min(end, begin + number - int(self.firsts[last_rows[holder]]))))
        return places

    def count_before(self, number: int, parts: int) -> NDArray[np.int64]:
        """Return a row (tokens, documents) for each of `parts` parts: what the first `number` tokens have of it."""
        part_of = np.array([block.part for block in self.blocks], np.int64)[self.holders]
        lengths = np.minimum(self.ranges[:, 1] - self.ranges[:, 0], (number - self.firsts).clip(0))
        counts = np.zeros((parts, 2), np.int64)
        np.add.at(counts[:, 0], part_of, lengths)
        eots = self.eots[: np.searchsorted(self.eots, number)]
        np.add.at(counts[:, 1], part_of[np.searchsorted(self.firsts, eots, side="right") - 1], 1)
        return counts


def is_safe_end(block: TokenBlock, last: int) -> bool:
    """Return whether a run may begin at the end of a block once its kept tokens, up to place `last`, are packed: not in
    the middle of a document that is left out, which would then be taken for one whose beginning is in the shards."""
    return last == len(block.tokens) or not block.end.starts_mid_document
