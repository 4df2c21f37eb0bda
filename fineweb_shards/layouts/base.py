"""Define what a layout is: file names, a header for n tokens, the width of a token, the position of EOT.

A layout is named after the program that reads it, its "reader". `ShardFormat` combines it with a vocabulary:
all conversions between tokens and bytes of a file are there. Nothing here writes a file.
"""

from __future__ import annotations

import glob
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fineweb_shards.errors import UsageError
from fineweb_shards.layouts.sidecar import Sidecar
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Dtype, ShardRecord, Split, Tokens
from fineweb_shards.vocabulary import Vocabulary, unsigned_dtype

NPY_HEADER_BYTES = 128  # for a row of any length


def npy_header(length: int, dtype: Dtype) -> bytes:
    """Return what comes before the data of a row of `length` numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    )
    header = buffer.getvalue()
    assert len(header) == NPY_HEADER_BYTES
    return header


class SizedFile(Protocol):
    """A file of tokens: one that exists, or one that a plan expects."""

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> Split: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> int: ...


class Layout(ABC):
    """The description of a layout. It has no state; `store/` makes the files."""

    name: ClassVar[str]
    eot_first: ClassVar[bool]  # EOT comes before (True) or after (False) each document
    header_bytes: ClassVar[int] = 0
    largest_bytes: ClassVar[int | None] = None  # of a file; None: the reader has no limit
    widest_bytes: ClassVar[int] = 4  # of a token that the reader accepts
    bare_dtype: ClassVar[Dtype | None] = None  # of files without a header, if the reader takes only one
    one_file: ClassVar[bool] = False  # a split is one file that grows, not numbered shards
    sidecars: ClassVar[tuple[Sidecar, ...]] = ()  # that every file has
    digits: ClassVar[int] = 6  # of a shard's number, at least
    suffix: ClassVar[str] = ".bin"  # of a file of tokens
    validates_first_shard: ClassVar[bool] = True  # if no setting says what is for validation; else nothing is
    file_name: ClassVar[str]  # with {split} and, unless it is one file, {number}
    pattern: ClassVar[str]  # regular expression of the names of its files and their sidecars
    missing_split_errors: ClassVar[dict[Split, str]] = {}  # the reader's message if a split has no file

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        """Return the name of a file in the output folder.

        `index` is 0 if a split is one file. The number has `digits` digits if that is more than the layout's
        own (see numbering.py).
        """
        return self.file_name.format(split=split, number=f"{index:0{max(digits, self.digits)}d}")

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        """Return the dtype in which the reader expects tokens; UsageError if it is too narrow for the ids."""
        if vocabulary.dtype.itemsize > self.widest_bytes:
            name, size, width_bytes = vocabulary.name, vocabulary.size, vocabulary.dtype.itemsize
            raise UsageError(
                f"--layout {self.name}: its reader takes tokens of {self.widest_bytes} bytes, and the "
                f"{size:,} ids of the vocabulary {name} need {width_bytes}.",
                "Choose a layout whose reader takes wider ones, such as plain: see docs/layouts.md.",
            )
        return vocabulary.dtype

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        """Return the header of a file of `tokens` tokens; always `header_bytes` long."""
        return b""

    def most_tokens(self, dtype: Dtype) -> int | None:
        """Return how many tokens a file may hold; None if the reader has no limit."""
        if self.largest_bytes is None:
            return None
        return (self.largest_bytes - self.header_bytes) // dtype.itemsize

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        """Return the split rule if no setting gives one."""
        return SplitRule(val_tokens=shard_tokens) if self.validates_first_shard else SplitRule()

    @abstractmethod
    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        """Return the lines with which a user trains on the files `names` in `folder`: to be pasted, so that
        names are quoted."""

    def warnings(self, files: Sequence[SizedFile], gpus: int = 1) -> list[str]:
        """Return sentences, each with a next step, about files that the reader will fail on with `gpus` GPUs.

        A split without any file is not reported here, but by run/output_text.py.
        """
        return []

    def owns(self, name: str) -> bool:
        """Return whether a file name is one that `shard_name` can give, or that of a sidecar."""
        return re.fullmatch(self.pattern, name) is not None

    def holds_tokens(self, name: str) -> bool:
        """Return whether a file name is one that `shard_name` can give."""
        return self.owns(name) and name.endswith(self.suffix)

    def split_of(self, name: str) -> Split:
        """Return the split of a file that the layout owns."""
        return "val" if "val" in name else "train"

    def opens(self, name: str) -> bool:
        """Return whether the reader would open a file of this name, whichever program made it."""
        return self.owns(name)


def quote_string(text: str) -> str:
    """Return a text as a string of Python and of YAML, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def quote_pattern(folder: str, names: str) -> str:
    """Return a glob pattern as such a string: only `names` may be wildcards."""
    return quote_string(f"{glob.escape(folder)}/{names}")


def tokens_of(shards: Sequence[ShardRecord], split: Split) -> int:
    """Count the tokens of one split."""
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
        """The dtype of the tokens in a file."""
        return self.layout.dtype(self.vocabulary)

    @property
    def read_dtype(self) -> Dtype:
        """The dtype with which tokens are read back: the same width, but unsigned."""
        return unsigned_dtype(self.dtype.itemsize)

    @property
    def header_bytes(self) -> int:
        return self.layout.header_bytes

    def header(self, tokens: int) -> bytes:
        """Return the header of a file of `tokens` tokens."""
        return self.layout.header(tokens, self.dtype)

    def size_bytes(self, tokens: int) -> int:
        """Return how many bytes `tokens` tokens take, without the header."""
        return tokens * self.dtype.itemsize

    def offset_bytes(self, tokens: int) -> int:
        """Return the byte in a file at which the token after the first `tokens` tokens starts."""
        return self.layout.header_bytes + self.size_bytes(tokens)

    def tokens_in(self, file_bytes: int) -> tuple[int, int]:
        """Return how many tokens a file of this length holds, and the bytes left over, which should be 0."""
        return divmod(file_bytes - self.layout.header_bytes, self.dtype.itemsize)

    def to_bytes(self, tokens: Tokens) -> memoryview:
        """Convert tokens to the bytes that a file has for them."""
        return np.ascontiguousarray(tokens, self.dtype).data.cast("B")

    def from_bytes(self, data: bytes) -> Tokens:
        """Convert bytes of a file to tokens; ignore an incomplete last token, which is reported elsewhere."""
        return np.frombuffer(data, self.read_dtype, count=len(data) // self.dtype.itemsize)
