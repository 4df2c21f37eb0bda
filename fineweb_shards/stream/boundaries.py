"""Keep tokens together with the positions of their EOTs while they are cut and joined.

The encoder knows where it puts EOTs, so the positions travel with the tokens and are shifted along; no later stage has
to search for them. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Positions, Tokens

NO_POSITIONS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of a stream, and the positions of the EOTs in them."""

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
        """Return the tokens from `begin` up to, but not including, `end`."""
        first, last = np.searchsorted(self.eots, (begin, end))
        return Span(self.tokens[begin:end], self.eots[first:last] - begin)


def join_spans(spans: Sequence[Span]) -> Span:
    """Concatenate spans. At least one is needed, because it gives the dtype."""
    starts = np.cumsum([len(span) for span in spans]) - [len(span) for span in spans]
    moved = [span.eots + start for span, start in zip(spans, starts, strict=True)]
    return Span(np.concatenate([span.tokens for span in spans]), np.concatenate(moved))
