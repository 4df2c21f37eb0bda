"""Check the segments of finished files, and open them for reading after that.

A file in a bucket would have to be fetched twice for it, which costs time and money. So a segment of one is
copied into a temporary folder, checked there, and removed when it has been read.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.reading.fetched_range import fetch_range
from fineweb_shards.reading.verify import check_segment, check_tokens
from fineweb_shards.store.files import OutputFile
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import output_error
from fineweb_shards.types import ShardRecord


class Segments(ABC):
    """The segments of a store. Each is checked, and then opened."""

    @abstractmethod
    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        """Return what is wrong with a segment, or None. In any thread."""

    @abstractmethod
    def open(self, record: ShardRecord) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open the file of a segment that was checked, at its first token."""


@contextlib.contextmanager
def open_segments(store: Store, shard_format: ShardFormat) -> Iterator[Segments]:
    """Open the segments of a store."""
    if not store.is_remote:
        yield _SegmentsHere(store, shard_format)
        return
    # A thread that nobody waits for may still write into it.
    with tempfile.TemporaryDirectory(prefix="fineweb-shards-", ignore_cleanup_errors=True) as folder:
        yield _FetchedSegments(store, shard_format, Path(folder))


@dataclass(frozen=True, slots=True)
class _SegmentsHere(Segments):
    store: Store
    shard_format: ShardFormat

    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        return check_segment(self.store, self.shard_format, file, self.store.find(file.name), record)

    @contextlib.contextmanager
    def open(self, record: ShardRecord) -> Iterator[BinaryIO]:
        with self.store.open(self.store.require(record.name)) as file:
            file.seek(max(record.offset, self.shard_format.header_bytes))
            yield file


@dataclass(frozen=True, slots=True)
class _FetchedSegments(Segments):
    store: Store
    shard_format: ShardFormat
    folder: Path

    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        # Its length and header, of the file in the bucket; its tokens, of the copy.
        found = self.store.find(file.name)
        if damage := check_segment(self.store, self.shard_format, file, found, record, sealed=True):
            return damage
        path = self._path(record)
        try:
            fetch_range(self.store, record.name, record.offset, record.offset + record.bytes, path)
        except OSError as error:
            raise output_error(path, error) from error
        with path.open("rb") as data:
            return check_tokens(self.shard_format, record, data, begin=record.offset)

    @contextlib.contextmanager
    def open(self, record: ShardRecord) -> Iterator[BinaryIO]:
        path = self._path(record)
        with path.open("rb") as file:
            file.seek(max(0, self.shard_format.header_bytes - record.offset))
            yield file
        path.unlink()

    def _path(self, record: ShardRecord) -> Path:
        return self.folder / f"{record.name}.{record.offset}"
