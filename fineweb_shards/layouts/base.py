"""Define what a layout is: file names, a header for n tokens, the width of a token, the position of EOT.

A layout is named after the program that reads it, its "reader". `ShardFormat` combines it with a vocabulary and
converts between tokens and the bytes of a file. Nothing here writes a file.

`Numbering` decides which file a token goes to, and its number. Names sort in the order of the stream, so that `cat
train_shard_*.bin` gives the stream. Therefore all numbers in a folder have the same number of digits. It is chosen
before the first shard, from the expected number of tokens, and kept in the manifest; a run that would need more digits
stops before it writes a name that sorts to the wrong place.
"""

from __future__ import annotations

import glob
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from fineweb_shards.errors import OutOfNumbersError, UsageError
from fineweb_shards.layouts.sidecar import INDEX_FOLDER, Sidecar
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Dtype, Positions, ShardRecord, Split, Tokens
from fineweb_shards.units import show_number_of
from fineweb_shards.vocabulary import Vocabulary, unsigned_dtype

_DIGITS_FOR_ANY_LENGTH = 6
Count = TypeVar("Count", int, Positions)  # one or many numbers of tokens or bytes


class SizedFile(Protocol):
    """A file of tokens, existing or planned."""

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> Split: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> int: ...


class Layout(ABC):
    """A stateless description of a layout; `output/` makes the files."""

    name: ClassVar[str]
    eot_first: ClassVar[bool]  # EOT comes before (True) or after (False) each document
    header_bytes: ClassVar[int] = 0
    largest_bytes: ClassVar[int | None] = None  # of a file; None: the reader has no limit
    widest_bytes: ClassVar[int] = 4  # of a token, for the reader
    bare_dtype: ClassVar[Dtype | None] = None  # of files without a header, if the reader supports only one
    one_file: ClassVar[bool] = False  # a split is one growing file, not numbered shards
    sidecars: ClassVar[tuple[Sidecar, ...]] = ()  # of every file
    digits: ClassVar[int] = 6  # the fewest in a shard's number
    suffix: ClassVar[str] = ".bin"  # of a file of tokens
    validates_first_shard: ClassVar[bool] = True  # by default; otherwise nothing is for validation
    file_name: ClassVar[str]  # with {split} and, unless it is one file, {number}
    pattern: ClassVar[str]  # regular expression of the names of its files and their sidecars
    opened_pattern: ClassVar[str] = ""  # of the names that the reader opens, if it opens more
    batch_tokens: ClassVar[int] = 0  # the reader needs in every file one batch for each GPU, and one token more
    short_file_failure: ClassVar[str] = ""  # what it does with a shorter one
    short_file_remedy: ClassVar[str] = ""  # with {needed}, and the {tokens} of the shortest file
    missing_split_errors: ClassVar[dict[Split, str]] = {}  # the reader's message if a split has no file

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        """Return the name of a file in the output folder. `index` is 0 if a split is one file; `digits` overrides the
        layout's own if it is more."""
        return self.file_name.format(split=split, number=f"{index:0{max(digits, self.digits)}d}")

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        """Return the dtype in which the reader expects tokens; UsageError if it is too narrow for the ids."""
        if vocabulary.dtype.itemsize > self.widest_bytes:
            name, size, width_bytes = vocabulary.name, vocabulary.size, vocabulary.dtype.itemsize
            raise UsageError(
                f"--layout {self.name}: its reader takes tokens of {self.widest_bytes} bytes, but the "
                f"{size:,} ids of the vocabulary {name} need {width_bytes}.",
                "Choose a layout whose reader takes wider ones, such as plain: see docs/layouts.md.",
            )
        return vocabulary.dtype

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        """Return the header, of `header_bytes` bytes, of a file of `tokens` tokens."""
        return b""

    def most_tokens(self, dtype: Dtype) -> int | None:
        """Return how many tokens a file may hold; None if the reader has no limit."""
        if self.largest_bytes is None:
            return None
        return (self.largest_bytes - self.header_bytes) // dtype.itemsize

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        """Return the split rule for settings without one."""
        return SplitRule(val_tokens=shard_tokens) if self.validates_first_shard else SplitRule()

    @abstractmethod
    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        """Return lines for the user to paste, with quoted names, for training on the files `names` in `folder`."""

    def warnings(self, files: Sequence[SizedFile], gpus: int = 1) -> list[str]:
        """Return sentences, each with a next step, about files that the reader will fail on with `gpus` GPUs;
        run/output_text.py reports splits without files."""
        needed = self.least_tokens(gpus)
        short = [file for file in files if file.tokens < needed]
        if not short:
            return []
        shortest = min(short, key=lambda file: file.tokens)
        have = "has" if len(short) == 1 else "have"
        return [
            f"{len(short):,} of {show_number_of(len(files), 'shard')} {have} fewer than the {needed:,} tokens that "
            f"{self.name} needs on {show_number_of(gpus, 'GPU')} ({shortest.name}: {shortest.tokens:,}); "
            f"{self.short_file_failure}. {self.short_file_remedy.format(needed=needed, tokens=shortest.tokens)}"
        ]

    def least_tokens(self, gpus: int) -> int:
        """Return how many tokens the reader needs in every file with `gpus` GPUs."""
        return gpus * self.batch_tokens + 1 if self.batch_tokens else 0

    def owns(self, name: str) -> bool:
        """Return whether a file name is one that `shard_name` can give, or that of a sidecar."""
        return re.fullmatch(self.pattern, name) is not None

    def holds_tokens(self, name: str) -> bool:
        """Return whether a file name is one that `shard_name` can give."""
        return self.owns(name) and name.endswith(self.suffix)

    def owns_index(self, name: str) -> bool:
        """Return whether a name in the output folder is that of a `DocumentIndex` for one of the layout's files."""
        path = PurePath(name)
        is_index = path.parent.name == INDEX_FOLDER and path.suffix == ".npy"
        return is_index and self.owns(path.stem + self.suffix)

    def opens(self, name: str) -> bool:
        """Return whether the reader would open a file of this name, whichever program made it."""
        return re.fullmatch(self.opened_pattern or self.pattern, name, re.DOTALL) is not None


def quote_string(text: str) -> str:
    """Return a text as a string in double quotes, valid in Python and YAML."""
    return json.dumps(text, ensure_ascii=False)


def quote_pattern(folder: str, names: str) -> str:
    """Return a quoted glob pattern; only `names` may contain wildcards."""
    return quote_string(f"{glob.escape(folder)}/{names}")


def tokens_of(shards: Sequence[ShardRecord], split: Split) -> int:
    return sum(shard.tokens for shard in shards if shard.split == split)


@dataclass(frozen=True, slots=True)
class ShardFormat:
    """How a file stores tokens. UsageError if the layout's reader can't hold the vocabulary's ids."""

    layout: Layout
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        self.layout.dtype(self.vocabulary)

    @property
    def dtype(self) -> Dtype:
        return self.layout.dtype(self.vocabulary)

    @property
    def read_dtype(self) -> Dtype:
        """The dtype with which tokens are read back: the same width, but unsigned."""
        return unsigned_dtype(self.dtype.itemsize)

    @property
    def header_bytes(self) -> int:
        return self.layout.header_bytes

    def header(self, tokens: int) -> bytes:
        return self.layout.header(tokens, self.dtype)

    def size_bytes(self, tokens: Count) -> Count:
        """Return how many bytes `tokens` tokens take, without the header."""
        return tokens * self.dtype.itemsize

    def offset_bytes(self, tokens: Count) -> Count:
        """Return the offset in a file after its first `tokens` tokens."""
        return self.layout.header_bytes + self.size_bytes(tokens)

    def tokens_in(self, file_bytes: int) -> tuple[int, int]:
        """Return how many tokens a file of this length holds, and the remaining bytes, which should be 0."""
        return divmod(file_bytes - self.layout.header_bytes, self.dtype.itemsize)

    def to_bytes(self, tokens: Tokens) -> memoryview:
        return np.ascontiguousarray(tokens, self.dtype).data.cast("B")

    def from_bytes(self, data: bytes) -> Tokens:
        """Convert bytes of a file to tokens; ignore an incomplete last token, which is reported elsewhere."""
        return np.frombuffer(data, self.read_dtype, count=len(data) // self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Numbering:
    """The names of a folder's files, in the order of the stream."""

    layout: Layout
    shard_tokens: int
    split_rule: SplitRule
    digits: int = 0  # of a shard's number; 0: a folder of an early version, which did not record it

    def index(self, split: Split, done: Mapping[Split, int]) -> int:
        """Return the number of the file for the next token of a split, after `done` tokens of each."""
        if self.layout.one_file:
            return 0
        first = self.split_rule.first_index(split, self.shard_tokens, done["val"])
        return first + done[split] // self.shard_tokens

    def begin(self, tokens: int) -> int:
        """Return how many of a split's first `tokens` tokens are in the same file as the next one."""
        return tokens if self.layout.one_file else tokens % self.shard_tokens

    def name(self, split: Split, done: Mapping[Split, int]) -> str:
        """Return the name of the file for the next token of a split, after `done` tokens of each."""
        return self.layout.shard_name(split, self.index(split, done), self.digits)

    def unrecorded_names(self, records: Sequence[ShardRecord], listed: Collection[str]) -> set[str]:
        """Return the `listed` names that a run may have given to files without recording them. It names files in order,
        perhaps many small ones at once, so they follow the recorded ones without a gap."""
        done = {split: tokens_of(records, split) for split in SPLITS}
        found: set[str] = set()
        for split in SPLITS:
            while (name := self.name(split, done)) in listed and name not in found:
                found.add(name)
                # Up to the file's end: it may be partly recorded, or be validation that does not fill it.
                done[split] += self.shard_tokens - done[split] % self.shard_tokens
        return found

    def check_width(self, split: Split, done: Mapping[Split, int]) -> None:
        """Raise OutOfNumbersError if the next file's number needs more digits than the folder's have."""
        index = self.index(split, done)
        if self.digits and index >= 10**self.digits:
            digits = show_number_of(self.digits, "digit")
            raise OutOfNumbersError(
                f"The numbers in this folder's names have {digits}, and shard {index:,} would need one more: "
                "names would no longer sort in the order of the stream.",
                "Choose a larger --shard-tokens and another --out. Everything finished is kept.",
            )


def choose_digits(layout: Layout, shard_tokens: int, expected_tokens: int | None, *, exact: bool) -> int:
    """Return how many digits the numbers need: for twice the expected shards, unless these are `exact`, or for a
    million shards if the length of the stream is unknown."""
    if expected_tokens is None:
        return max(layout.digits, _DIGITS_FOR_ANY_LENGTH)
    shards = (1 if exact else 2) * (expected_tokens // shard_tokens + len(SPLITS))
    return max(layout.digits, len(str(shards - 1)))
