"""Keep the values that were used last, and forget the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Latest(Generic[Key, Value]):
    """The last two values that `make` has made: a batch is rarely from more shards. A pickle has none."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._kept: dict[Key, Value] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make, "_kept": {}}  # a mapped shard would be pickled with all its tokens

    def __getitem__(self, key: Key) -> Value:
        if key not in self._kept:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._make(key)
        return self._kept[key]
