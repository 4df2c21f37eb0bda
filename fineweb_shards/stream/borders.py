"""Pure: tokens together with the places of their EOTs, cut apart and put together.

Where documents end is known to whoever puts the EOTs there, so the places go with the tokens and are moved
as they are. Nobody searches for what was known before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Places, Tokens

NO_PLACES: Places = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of a stream, and where in them the EOTs are."""

    tokens: Tokens
    eots: Places

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, begin: int, end: int) -> Span:
        """The tokens from `begin` up to `end`."""
        first, last = np.searchsorted(self.eots, (begin, end))
        return Span(self.tokens[begin:end], self.eots[first:last] - begin)


def join_spans(spans: Sequence[Span]) -> Span:
    """All of them, one behind the other; at least one, which says how wide a token is."""
    starts = np.cumsum([len(span) for span in spans]) - [len(span) for span in spans]
    moved = [span.eots + start for span, start in zip(spans, starts, strict=True)]
    return Span(np.concatenate([span.tokens for span in spans]), np.concatenate(moved))


def count_between(eots: Places, begin: int, end: int) -> int:
    """How many EOTs are at `begin` or behind it, and before `end`."""
    first, last = np.searchsorted(eots, (begin, end))
    return int(last - first)
