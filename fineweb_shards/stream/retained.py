"""Number the tokens of a block that are kept, from 0, and translate between these numbers and their places.

The packer counts kept tokens only; placements and cursors need places in the block. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Positions, Ranges, TokenBlock


@dataclass(frozen=True, slots=True)
class RetainedTokens:
    """The tokens of a block that are kept."""

    tokens: int
    eots: Positions  # the numbers of those that are EOTs
    _ranges: Ranges | None  # their places; None: all
    _firsts: Positions  # the number of the first token of each range

    @classmethod
    def of(cls, block: TokenBlock) -> RetainedTokens:
        """Number the kept tokens of a block."""
        ranges = block.kept
        if ranges is None:
            return cls(len(block.tokens), block.eots, None, block.eots[:0])
        lengths = ranges[:, 1] - ranges[:, 0]
        firsts = np.cumsum(lengths) - lengths
        holder = np.searchsorted(ranges[:, 1], block.eots, side="right")  # the range that an EOT would be in
        eots, holder = block.eots[holder < len(ranges)], holder[holder < len(ranges)]
        offsets = eots - ranges[holder, 0]
        inside = offsets >= 0
        return cls(int(lengths.sum()), (firsts[holder] + offsets)[inside], ranges, firsts)

    def count_before(self, place: int) -> int:
        """Return how many kept tokens are in front of a place in the block."""
        if self._ranges is None:
            return place
        begins, ends = self._ranges.T
        return int((np.minimum(ends, place) - begins).clip(0).sum())

    def place_after(self, number: int) -> int:
        """Return the place right after the first `number` kept tokens; that of none is the block's start."""
        if self._ranges is None or not number:
            return number
        last = int(np.searchsorted(self._firsts, number)) - 1  # the range that has the last of them
        return int(self._ranges[last, 0] + number - self._firsts[last])

    def places_of(self, numbers: Ranges) -> Ranges:
        """Return where ranges of kept tokens are in the block; one range may become several."""
        if self._ranges is None or not len(numbers):
            return numbers
        # Cut the ranges wherever tokens are left out between two neighbours.
        begins, ends = numbers.T
        cuts = self._firsts[1:]
        holder = np.searchsorted(ends, cuts, side="right")
        inside = holder < len(numbers)
        inside[inside] &= begins[holder[inside]] < cuts[inside]
        edges = np.sort(np.concatenate([begins, ends, cuts[inside], cuts[inside]])).reshape(-1, 2)
        last = np.searchsorted(self._firsts, edges[:, 0], side="right") - 1
        places: Ranges = edges + (self._ranges[last, 0] - self._firsts[last])[:, None]
        return places
