"""Decide which part of the stream is for validation: its first tokens, or a share of its documents.

The share is exact without knowing the number of documents: they are divided into groups of 1/ratio, and in
every group exactly one document is for validation, chosen by the group's number and a seed. So a document's
split is a pure function of its number; neither the number of workers nor a crash can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import UsageError
from fineweb_shards.types import Places, Split

_MOST_DECIMALS = 9  # document numbers times the ratio's numerator must fit into 64 bits


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What is for validation: the first `val_tokens` tokens, or `val_ratio` of the documents, or nothing."""

    val_tokens: int = 0
    val_ratio: Fraction = Fraction(0)
    seed: int = 0

    @property
    def is_in_order(self) -> bool:
        """Whether the files, validation first, hold the stream in its order."""
        return not self.val_ratio

    def first_index(self, split: Split, shard_tokens: int) -> int:
        """Return the number of a split's first shard.

        Training continues the numbers of validation. With `val_ratio` both splits are numbered from 0.
        """
        return -(-self.val_tokens // shard_tokens) if split == "train" else 0

    def chooses(self, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each document, given by its number in the stream, whether it is for validation."""
        if not self.val_ratio:
            return np.zeros(len(documents), bool)
        p, q = self.val_ratio.numerator, self.val_ratio.denominator
        groups = documents * p // q
        # Group g has the documents from ceil(g/ratio) up to ceil((g+1)/ratio).
        firsts = -(-groups * q // p)
        sizes = -(-(groups + 1) * q // p) - firsts
        draws = (_scramble(groups.astype(np.uint64), self.seed) >> np.uint64(1)).astype(np.int64)
        return np.equal(documents, firsts + draws % sizes)

    def ranges(
        self, eots: Places, tokens: int, documents_before: int, *, eot_first: bool
    ) -> NDArray[np.int64]:
        """Return a row (begin, end) for each validation document in a segment of the stream.

        The segment has `tokens` tokens with EOTs at `eots`; `documents_before` EOTs precede it.
        """
        # An EOT separates two documents: there is up to one more document here than EOTs, from `first` on.
        first = documents_before - 1 if eot_first else documents_before
        chosen = self.chooses(np.arange(first, first + len(eots) + 1, dtype=np.int64).clip(0))
        borders = np.concatenate([[0], eots if eot_first else eots + 1, [tokens]])
        numbers = np.flatnonzero(chosen)
        return np.stack([borders[numbers], borders[numbers + 1]], axis=1)


def make_split_rule(
    val_tokens: int | None, val_ratio: float | None, val_seed: int, default: SplitRule
) -> SplitRule:
    """Return the split rule that the settings ask for, or else the layout's `default`."""
    if val_tokens is not None and val_ratio is not None:
        raise UsageError("--val-tokens and --val-ratio exclude each other.", "Name one of the two.")
    if val_tokens is not None:
        return SplitRule(val_tokens=val_tokens)
    if val_ratio is not None:
        return SplitRule(val_ratio=_exact(val_ratio), seed=val_seed)
    return SplitRule(default.val_tokens, default.val_ratio, val_seed)


def _exact(ratio: float) -> Fraction:
    """Return the fraction that was typed: 0.0005 is 1/2000, not the nearest binary fraction."""
    exact = Fraction(repr(ratio))
    if not 0 <= exact < 1 or exact.denominator > 10**_MOST_DECIMALS:
        raise UsageError(
            f"--val-ratio {ratio:g}: must be from 0 to below 1, with at most {_MOST_DECIMALS} decimals.",
            "For example 0.0005: one document in 2,000. For percent write 5%.",
        )
    return exact


def _scramble(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Hash each number with the seed to 64 bits (SplitMix64)."""
    golden = 0x9E3779B97F4A7C15
    start = np.uint64((seed * 0xD1342543DE82EF95 + golden) % 2**64)
    mixed = (numbers + np.uint64(1)) * np.uint64(golden) + start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
