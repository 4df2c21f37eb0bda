"""Decide which part of the stream is for validation: its beginning, or a share of its documents.

The beginning is a number of tokens or of documents, or the documents of the first files.

The share is exact without knowing the number of documents: they are divided into groups of 1/ratio, and in every group
exactly one document is for validation, chosen by the group's number and a seed. So a document's split is a pure
function of its number, unaffected by workers and crashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import UsageError
from fineweb_shards.stream.shuffle import STEP, mix64
from fineweb_shards.types import Positions, Split
from fineweb_shards.units import show_number_of

VAL_SETTINGS = ("val_tokens", "val_documents", "val_ratio")  # of which a user may choose one
_MOST_DECIMALS = 9  # document numbers times the ratio's numerator must fit into 64 bits


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What is for validation: the first N tokens, the first N documents, the documents of the first N files of each
    part of the input, `val_ratio` of the documents, or nothing. At most one of these is set."""

    val_tokens: int = 0
    val_ratio: Fraction = Fraction(0)
    seed: int = 0
    val_documents: int = 0
    val_files: tuple[int, ...] = ()

    @property
    def is_in_order(self) -> bool:
        """Whether the files, validation first, hold the stream in order."""
        return not self.val_ratio

    @property
    def counts_tokens(self) -> bool:
        """Whether the number of tokens for validation is known before any document is read."""
        return not (self.val_ratio or self.val_documents or self.val_files)

    def describe(self) -> str:
        if self.val_ratio:
            return f"{float(self.val_ratio):g} of the documents (seed {self.seed})"
        if self.val_files:
            return f"the documents of {show_number_of(sum(self.val_files), 'file')}"
        if self.val_documents:
            return f"the first {show_number_of(self.val_documents, 'document')}"
        return f"the first {show_number_of(self.val_tokens, 'token')}" if self.val_tokens else "nothing"

    def first_index(self, split: Split, shard_tokens: int, val_tokens: int) -> int:
        """Return the number of a split's first shard; `val_tokens` is the number of validation tokens so far. Training
        continues validation's numbers. With `val_ratio` both splits are numbered from 0."""
        if split == "val" or self.val_ratio:
            return 0
        return -(-max(val_tokens, self.val_tokens) // shard_tokens)

    def chooses(self, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each document, given by its number in the stream, whether it is for validation."""
        if not self.val_ratio:
            return np.zeros(len(documents), bool)
        p, q = self.val_ratio.numerator, self.val_ratio.denominator
        groups = documents * p // q
        # Group g has the documents from ceil(g/ratio) up to ceil((g+1)/ratio).
        firsts = -(-groups * q // p)
        sizes = -(-(groups + 1) * q // p) - firsts
        # SplitMix64, started by the seed.
        start = np.uint64((self.seed * 0xD1342543DE82EF95 + int(STEP)) % 2**64)
        draws = (mix64((groups.astype(np.uint64) + np.uint64(1)) * STEP + start) >> np.uint64(1)).astype(np.int64)
        return np.equal(documents, firsts + draws % sizes)

    def ranges(self, eots: Positions, tokens: int, documents_before: int, *, eot_first: bool) -> NDArray[np.int64]:
        """Return a row (begin, end) for each validation document in `tokens` tokens, after `documents_before` EOTs."""
        # EOTs separate documents: there is up to one more document here than EOTs, from `first` on.
        first = documents_before - 1 if eot_first else documents_before
        chosen = self.chooses(np.arange(first, first + len(eots) + 1, dtype=np.int64).clip(0))
        boundaries = np.concatenate([[0], eots if eot_first else eots + 1, [tokens]])
        numbers = np.flatnonzero(chosen)
        return np.stack([boundaries[numbers], boundaries[numbers + 1]], axis=1)


def make_split_rule(settings: Mapping[str, Any], val_files: tuple[int, ...], default: SplitRule) -> SplitRule:
    """Return the split rule from the settings; else the first `val_files` files of the parts, or else `default`."""
    given = {name: settings[name] for name in VAL_SETTINGS if settings.get(name) is not None}
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in [*given][:2])
        raise UsageError(f"{first} and {second} exclude each other.", "Name one of the two.")
    if (ratio := given.get("val_ratio")) is not None:
        exact = Fraction(repr(ratio))  # what was typed: 0.0005 is 1/2000, not the nearest binary fraction
        if not 0 <= exact < 1 or exact.denominator > 10**_MOST_DECIMALS:
            raise UsageError(
                f"--val-ratio {ratio:g}: must be from 0 to below 1, with at most {_MOST_DECIMALS} decimals.",
                "For example 0.0005: one document in 2,000. For percent write 5%.",
            )
        return SplitRule(val_ratio=exact, seed=settings["val_seed"])
    if given:
        return SplitRule(**given)
    return SplitRule(val_files=val_files) if any(val_files) else replace(default, seed=settings["val_seed"])
