"""Hold the ids of many texts in one array, with a place in front of each text for its EOT.

So a block of tokens is made of a few large arrays, and nothing has to be done for each document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Places, Tokens

_TEXTS_AT_ONCE = 64  # 250 KB of ids: still in the processor's cache when they are checked and narrowed


@dataclass(frozen=True, slots=True)
class JoinedIds:
    """The ids of texts, one after the other. What `ids` has at `places`, one in front of each text, means
    nothing."""

    ids: Tokens
    places: Places

    def of_text(self, i: int) -> Tokens:
        """Return the ids of text `i`."""
        end = self.places[i + 1] if i + 1 < len(self.places) else len(self.ids)
        return self.ids[self.places[i] + 1 : end]

    def split(self) -> list[Tokens]:
        """Return the ids of each text."""
        return [self.of_text(i) for i in range(len(self.places))]


def join_ids(texts: list[Tokens]) -> Iterator[JoinedIds]:
    """Join the ids of texts, some texts at a time."""
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[first : first + _TEXTS_AT_ONCE]
        parts: list[Tokens] = [np.zeros(1, np.uint32)] * (2 * len(some))
        parts[1::2] = some
        widths = np.fromiter(map(len, some), np.int64, len(some)) + 1
        yield JoinedIds(np.concatenate(parts), np.cumsum(widths) - widths)
