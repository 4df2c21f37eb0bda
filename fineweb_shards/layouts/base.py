"""What a layout is: a name rule, a header for n tokens, how wide they are, and the side EOT stands on.

One table per layout says what its reader asks for. Nothing here writes a file.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from fineweb_shards.errors import UsageError
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Dtype, ShardRecord, Split
from fineweb_shards.vocabulary import Vocabulary


class SizedFile(Protocol):
    """A file of tokens: one that is there, or one that a plan expects."""

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> Split: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> int: ...


class Layout(ABC):
    """A pure description; the writer does the writing."""

    name: ClassVar[str]
    eot_first: ClassVar[bool]  # EOT stands before (True) or after each document
    header_bytes: ClassVar[int] = 0
    largest_bytes: ClassVar[int | None] = None  # of a file, where the reader has a limit
    widest_bytes: ClassVar[int] = 4  # of a token, that the reader can take
    one_file: ClassVar[bool] = False  # a split is one file that grows, not numbered shards
    has_index: ClassVar[bool] = False  # beside every file stands Megatron's index of its documents
    digits: ClassVar[int] = 6  # at least, of a shard's number
    pattern: ClassVar[str]  # all names that a file of this layout can have
    without_split: ClassVar[dict[Split, str]] = {}  # what the reader says where a split has no file

    @abstractmethod
    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        """The name of a file, below the output folder. `index` is 0 where there is one file; its number
        has `digits` digits where those are more than usual (see numbering.py)."""

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        """How the reader wants a token of this vocabulary. UsageError where it can't hold its ids."""
        if vocabulary.dtype.itemsize > self.widest_bytes:
            name, size, width_bytes = vocabulary.name, vocabulary.size, vocabulary.dtype.itemsize
            raise UsageError(
                f"--layout {self.name}: its reader takes tokens of {self.widest_bytes} bytes, and the "
                f"{size:,} ids of the vocabulary {name} need {width_bytes}.",
                "Choose a layout whose reader takes wider ones: build-nanogpt, llm.c, plain or megatron.",
            )
        return vocabulary.dtype

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        """The bytes in front of so many tokens; always `header_bytes` long."""
        return b""

    def most_tokens(self, dtype: Dtype) -> int | None:
        """How many tokens a file may hold, where the reader has a limit."""
        if self.largest_bytes is None:
            return None
        return (self.largest_bytes - self.header_bytes) // dtype.itemsize

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        """What is for validation where nobody says: shard 0."""
        return SplitRule(val_tokens=shard_tokens)

    @abstractmethod
    def loader_lines(self, folder: str, names: Sequence[str], dtype: Dtype) -> list[str]:
        """What a user writes to train on the files `names` in `folder`."""

    def warnings(self, files: Sequence[SizedFile]) -> list[str]:
        """What the reader will stumble over in these files, in sentences with a next step. A split that
        has no file at all is told by run/trainer_warnings.py."""
        return []

    def owns(self, name: str) -> bool:
        """Whether a file name could be a shard's: a reader of this layout would open it."""
        return re.fullmatch(self.pattern, name) is not None

    def opens(self, name: str) -> bool:
        """Whether the reader would take a file of this name for a shard, whoever made it."""
        return self.owns(name)


def tokens_of(shards: Sequence[ShardRecord], split: Split) -> int:
    """How many tokens one split has."""
    return sum(shard.tokens for shard in shards if shard.split == split)
