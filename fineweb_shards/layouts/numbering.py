"""Decide which file a token goes to, and how the file is numbered.

Names sort in the order of the stream, so that `cat train_shard_*.bin` gives the stream. Therefore all numbers
of a folder have the same number of digits. It is chosen before the first shard, from the expected number of
tokens, and kept in the manifest; a run that needs more digits stops before it writes a name that would sort
to the wrong place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fineweb_shards.errors import OutOfNumbersError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, ShardRecord, Split
from fineweb_shards.units import show_number_of

_DIGITS_FOR_ANY_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Numbering:
    """The names of a folder's files, in the order of the stream."""

    layout: Layout
    shard_tokens: int
    split_rule: SplitRule
    digits: int = 0  # of a shard's number; 0: a folder of an early version, which did not choose

    def index(self, split: Split, done: Mapping[Split, int]) -> int:
        """Return the number of the file for the next token of a split, given how many each split has."""
        if self.layout.one_file:
            return 0
        first = self.split_rule.first_index(split, self.shard_tokens, done["val"])
        return first + done[split] // self.shard_tokens

    def begin(self, tokens: int) -> int:
        """Return how many of the first `tokens` tokens of a split are in the same file as the next token."""
        return tokens if self.layout.one_file else tokens % self.shard_tokens

    def name(self, split: Split, done: Mapping[Split, int]) -> str:
        """Return the name of the file for the next token of a split, given how many each split has."""
        return self.layout.shard_name(split, self.index(split, done), self.digits)

    def unrecorded_names(self, records: Iterable[ShardRecord], listed: Collection[str]) -> set[str]:
        """Return those of the `listed` names that a run may have given to files without recording them: it
        names files in order, any number of small ones at once, so they follow the recorded ones without a
        gap."""
        done = dict.fromkeys(SPLITS, 0)
        for record in records:
            done[record.split] += record.tokens
        found: set[str] = set()
        for split in SPLITS:
            while (name := self.name(split, done)) in listed and name not in found:
                found.add(name)
                # To that file's end: it may be recorded in part, or be validation that does not fill it.
                done[split] += self.shard_tokens - done[split] % self.shard_tokens
        return found

    def check_width(self, split: Split, done: Mapping[Split, int]) -> None:
        """Raise OutOfNumbersError if the next file's number needs more digits than the folder's have."""
        index = self.index(split, done)
        if self.digits and index >= 10**self.digits:
            digits = show_number_of(self.digits, "digit")
            raise OutOfNumbersError(
                f"The numbers in this folder's names have {digits}, and shard {index:,} would need one more: "
                "names would no longer sort as the stream does.",
                "Choose a larger --shard-tokens and another --out. Everything finished is kept.",
            )


def choose_digits(layout: Layout, shard_tokens: int, expected_tokens: int | None, *, exact: bool) -> int:
    """Return how many digits the numbers need.

    Unless `exact`, twice the expected shards must fit. A stream of unknown length may have a million shards.
    """
    if expected_tokens is None:
        return max(layout.digits, _DIGITS_FOR_ANY_LENGTH)
    shards = (1 if exact else 2) * (expected_tokens // shard_tokens + len(SPLITS))
    return max(layout.digits, len(str(shards - 1)))
