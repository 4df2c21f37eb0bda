"""The shards of a folder in a bucket for a loader: files are divided into pieces, and a piece is fetched when
its tokens are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.errors import InputError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.loader.forkable_store import ForkableStore
from fineweb_shards.loader.shard_cache import Piece, ShardCache
from fineweb_shards.reading.token_file import TokenFile, TokenFolder, open_files_in
from fineweb_shards.store.opening import READING_OUTAGE_SECONDS
from fineweb_shards.store.shard_files import OutputFile, list_files
from fineweb_shards.store.store import FoundFile
from fineweb_shards.types import Dtype, ShardRecord, Tokens

_PIECE_BYTES = 2**28  # of a file that no manifest divides
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


@dataclass(frozen=True, slots=True)
class BucketPieces:
    """The pieces of a file in a bucket, in order, and where they are kept."""

    pieces: tuple[Piece, ...]
    cache: ShardCache

    def map(self, file: TokenFile) -> PiecedTokens:
        """Return the tokens of a file, or of a part of it."""
        return PiecedTokens(file, self._needed(file), self.cache)

    def fetch_ahead(self, file: TokenFile) -> None:
        """Begin to fetch the first piece."""
        for piece in self._needed(file)[:1]:
            self.cache.fetch_ahead(piece)

    def _needed(self, file: TokenFile) -> list[Piece]:
        return [
            piece for piece in self.pieces if piece.begin < file.end_bytes and file.header_bytes < piece.end
        ]


def open_bucket_folder(location: str, cache: ShardCache) -> TokenFolder:
    """Open a folder in a bucket."""
    bucket = Bucket(location, READING_OUTAGE_SECONDS, refusal=InputError)
    return TokenFolder(ForkableStore(bucket, cache.folder))


def open_bucket_files(
    folder: TokenFolder, names: Sequence[str], dtype: Dtype | None, cache: ShardCache
) -> Iterator[tuple[TokenFile, BucketPieces]]:
    """Open files. What the manifest says of them need not be asked: with thousands of shards that would take
    minutes."""
    manifest = folder.manifest
    known = {file.name: file for file in list_files(manifest.shards)} if manifest else {}
    found = folder.store.find_all(names) if manifest else {}
    other = [name for name in names if name not in known or not _is_whole(known[name], found.get(name))]
    opened = dict(zip(other, open_files_in(folder, other, dtype), strict=True))
    for name in names:
        if name in opened or manifest is None:
            yield opened[name], BucketPieces(tuple(_cut(opened[name])), cache)
        else:
            file, shard_format = known[name], manifest.shard_format
            whole = token_file(folder, shard_format, name, 0, file.tokens)
            yield whole, pieces_of(folder, file.segments, cache)


def token_file(
    folder: TokenFolder, shard_format: ShardFormat, name: str, offset: int, tokens: int
) -> TokenFile:
    """Return the file of a manifest, or a segment of it, as something to read."""
    begin = max(offset, shard_format.header_bytes)
    return TokenFile(folder, name, shard_format.layout.name, begin, tokens, shard_format.read_dtype)


def pieces_of(folder: TokenFolder, records: Sequence[ShardRecord], cache: ShardCache) -> BucketPieces:
    """Return the segments of a file as pieces, each with its hash."""
    store = cast(ForkableStore, folder.store)
    pieces = (
        Piece(store, record.name, record.offset, record.offset + record.bytes, record.sha256)
        for record in records
    )
    return BucketPieces(tuple(pieces), cache)


def _is_whole(file: OutputFile, found: FoundFile | None) -> bool:
    return found is not None and found.named and found.size_bytes == file.end_bytes


def _cut(file: TokenFile) -> Iterator[Piece]:
    """Yield pieces of a file that no manifest knows."""
    store = cast(ForkableStore, file.folder.store)
    found = store.find(file.name)
    for begin in range(file.header_bytes, file.end_bytes, _PIECE_BYTES):
        end = min(begin + _PIECE_BYTES, file.end_bytes)
        yield Piece(store, file.name, begin, end, etag=found.etag if found else "")
