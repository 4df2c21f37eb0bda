"""The independent reference of a shuffle: a plain sort in memory. Nothing here imports the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Document = TypeVar("Document")
_ALL = 2**64


def mixed(value: int) -> int:
    """SplitMix64's finalizer."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _ALL
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _ALL
    return value ^ (value >> 31)


def hash64(seed: int, ordinal: int) -> int:
    start = mixed((seed + 0x9E3779B97F4A7C15) % _ALL)
    return mixed(mixed((ordinal * 0x9E3779B97F4A7C15 + start) % _ALL) ^ start)


def shuffled(documents: Sequence[Document], seed: int, validation: int = 0) -> list[Document]:
    """The documents in their random order; the first ones, of files for validation, stay before all others."""
    order = sorted(range(len(documents)), key=lambda i: (i >= validation, hash64(seed, i), i))
    return [documents[i] for i in order]
