"""The tokens of a shard in a bucket, which are fetched piece by piece when they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from fineweb_shards.loader.shard_cache import Piece, ShardCache
from fineweb_shards.reading.token_file import TokenFile
from fineweb_shards.types import Tokens

_FEWEST_MAPPED = 2


class PiecedTokens:
    """Tokens that can be sliced like an array. The pieces follow each other without a gap.

    The pieces that were read last stay mapped, at most a quarter of the cache, and are not deleted meanwhile.
    """

    def __init__(self, file: TokenFile, pieces: Sequence[Piece], cache: ShardCache) -> None:
        self._file = file
        self._pieces = pieces
        self._begins = [piece.begin for piece in pieces]
        self._cache = cache
        self._mapped: dict[int, Tokens] = {}  # by the number of a piece; the last one was read last

    def __len__(self) -> int:
        return self._file.tokens

    def __getitem__(self, wanted: slice) -> Tokens:
        first, last, _ = wanted.indices(len(self))
        if first >= last:
            return np.empty(0, self._file.dtype)
        header, width = self._file.header_bytes, self._file.dtype.itemsize
        begin, end = header + first * width, header + last * width
        parts = []
        for number in range(bisect_right(self._begins, begin) - 1, len(self._pieces)):
            piece = self._pieces[number]
            if piece.begin >= end:
                break
            origin = max(piece.begin, header)
            tokens = self._map(number)
            parts.append(tokens[max(0, begin - origin) // width : (min(end, piece.end) - origin) // width])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _map(self, number: int) -> Tokens:
        """Return the tokens of a piece; fetch the next one in the background if this one is new."""
        tokens = self._mapped.pop(number, None)
        if tokens is None:
            piece, header = self._pieces[number], self._file.header_bytes
            data = self._cache.map(piece)[max(0, header - piece.begin) :]
            tokens = data[: len(data) // self._file.dtype.itemsize * self._file.dtype.itemsize].view(
                self._file.dtype
            )
            if number + 1 < len(self._pieces):
                self._cache.fetch_ahead(self._pieces[number + 1])
        self._mapped[number] = tokens
        while len(self._mapped) > _FEWEST_MAPPED and self._mapped_bytes > self._cache.limit_bytes // 4:
            del self._mapped[next(iter(self._mapped))]
        return tokens

    @property
    def _mapped_bytes(self) -> int:
        return sum(self._pieces[number].size_bytes for number in self._mapped)
