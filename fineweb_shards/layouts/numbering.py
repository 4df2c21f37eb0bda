"""Which file a token goes to. Names sort as the stream does: `cat train_shard_*.bin` is the stream.

So a number never has more digits than the others. How many are needed is decided before the first shard, from
what is expected, and kept in the manifest; a run that outgrows them stops before it writes a name that would
be sorted to the wrong place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fineweb_shards.errors import OutputError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, ShardRecord, Split
from fineweb_shards.units import show_number_of

_DIGITS_FOR_ANY_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Numbering:
    """The names of an output's files, in their order."""

    layout: Layout
    shard_tokens: int
    split_rule: SplitRule
    digits: int = 0  # of a shard's number; 0: a folder of a version that did not decide

    def index(self, split: Split, tokens: int) -> int:
        """The number of the file that holds the token behind the first `tokens` of a split."""
        if self.layout.one_file:
            return 0
        return tokens // self.shard_tokens + self.split_rule.first_index(split, self.shard_tokens)

    def begin(self, tokens: int) -> int:
        """How many of the first `tokens` of a split are in the file that comes next."""
        return tokens if self.layout.one_file else tokens % self.shard_tokens

    def name(self, split: Split, tokens: int) -> str:
        """The name of that file."""
        return self.layout.shard_name(split, self.index(split, tokens), self.digits)

    def next_names(self, records: Iterable[ShardRecord]) -> set[str]:
        """The files that a run may be giving their names when it is killed."""
        done = dict.fromkeys(SPLITS, 0)
        for record in records:
            done[record.split] += record.tokens
        return {self.name(split, done[split]) for split in SPLITS}

    def check_width(self, split: Split, tokens: int) -> None:
        """Refuse a number with more digits than those before it."""
        index = self.index(split, tokens)
        if self.digits and index >= 10**self.digits:
            digits = show_number_of(self.digits, "digit")
            raise OutputError(
                f"The numbers in this folder's names have {digits}, and shard {index:,} would need one more: "
                "names would no longer sort as the stream does.",
                "Choose a larger --shard-tokens and another --out. Everything finished is kept.",
            )


def choose_digits(layout: Layout, shard_tokens: int, expected_tokens: int | None, *, exact: bool) -> int:
    """How many digits the numbers need. An estimate may be wrong by half; a stream of unknown length may have
    a million shards."""
    if expected_tokens is None:
        return max(layout.digits, _DIGITS_FOR_ANY_LENGTH)
    shards = (1 if exact else 2) * (expected_tokens // shard_tokens + len(SPLITS))
    return max(layout.digits, len(str(shards - 1)))
