"""Combine a layout with a vocabulary: how wide a token is in a file, and at which byte it starts.

All conversions between tokens and bytes of a file are here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.types import Dtype, Tokens
from fineweb_shards.vocabulary import Vocabulary, unsigned_dtype


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
