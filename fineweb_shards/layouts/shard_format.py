"""The files of one layout for one vocabulary: how wide a token is, and so where in a file it is.

Nobody else multiplies tokens by a width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.types import Dtype, Tokens
from fineweb_shards.vocabulary import Vocabulary, unsigned_dtype


@dataclass(frozen=True, slots=True)
class ShardFormat:
    """How tokens stand in a file. UsageError where the layout's reader can't hold the vocabulary's ids."""

    layout: Layout
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        self.layout.dtype(self.vocabulary)

    @property
    def dtype(self) -> Dtype:
        """As a file has its tokens."""
        return self.layout.dtype(self.vocabulary)

    @property
    def read_dtype(self) -> Dtype:
        """As they are read back: the same bytes, never negative."""
        return unsigned_dtype(self.dtype.itemsize)

    @property
    def header_bytes(self) -> int:
        return self.layout.header_bytes

    def header(self, tokens: int) -> bytes:
        """The bytes in front of so many tokens."""
        return self.layout.header(tokens, self.dtype)

    def size_bytes(self, tokens: int) -> int:
        """How many bytes so many tokens take, without a header."""
        return tokens * self.dtype.itemsize

    def offset_bytes(self, tokens: int) -> int:
        """Where in a file the token behind so many is."""
        return self.layout.header_bytes + self.size_bytes(tokens)

    def tokens_in(self, file_bytes: int) -> tuple[int, int]:
        """How many tokens a file of this length holds, and how many bytes are left over: none should be."""
        return divmod(file_bytes - self.layout.header_bytes, self.dtype.itemsize)

    def to_bytes(self, tokens: Tokens) -> memoryview:
        """Tokens as a file has them."""
        return np.ascontiguousarray(tokens, self.dtype).data.cast("B")

    def from_bytes(self, data: bytes) -> Tokens:
        """Tokens out of a part of a file; a rest that is none (damage, told elsewhere) is left out."""
        return np.frombuffer(data, self.read_dtype, count=len(data) // self.dtype.itemsize)
