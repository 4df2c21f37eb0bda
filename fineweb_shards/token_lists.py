"""Hold the tokens of many documents that need no encoding, because their source gives ids and not text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
Lengths = NDArray[np.int64]


class TokenLists:
    """A sequence of documents: the ids of all of them, one after the other, and how many each has.

    The ids are checked, as wide as their vocabulary makes them, and none of them is an EOT. They are kept in
    the parts in which they were read, so that adding more does not copy them.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, *parts: tuple[Ids, Lengths]) -> None:
        self._parts = parts
        self._count = sum(len(lengths) for _, lengths in parts)

    def __len__(self) -> int:
        return self._count

    def __add__(self, other: TokenLists) -> TokenLists:
        return TokenLists(*self._parts, *other._parts)

    @property
    def ids(self) -> Ids:
        """The ids of all documents; there must be one."""
        return np.concatenate([ids for ids, _ in self._parts])

    @property
    def lengths(self) -> Lengths:
        """The number of ids of each document."""
        return np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in self._parts)])

    @property
    def size_bytes(self) -> int:
        """The size of all ids together."""
        return sum(ids.nbytes for ids, _ in self._parts)
