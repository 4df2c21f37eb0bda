"""Open the files of a folder in a bucket for a loader, and divide them into the pieces that are fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.errors import InputError
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.loader.forkable_store import ForkableStore
from fineweb_shards.loader.pieced_tokens import PiecedTokens
from fineweb_shards.loader.shard_cache import Piece, ShardCache
from fineweb_shards.reading.token_file import TokenFile, open_files_in
from fineweb_shards.reading.token_folder import TokenFolder
from fineweb_shards.store.files import OutputFile, list_files
from fineweb_shards.store.opening import READING_OUTAGE_SECONDS
from fineweb_shards.store.store import FoundFile
from fineweb_shards.types import Dtype, ShardRecord

_PIECE_BYTES = 2**28  # of a file that no manifest divides


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
