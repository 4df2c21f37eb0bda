"""Read row groups of parquet files on the hub or in a bucket: the workers fetch them by range requests.

Files are opened in the background, the next one ahead of time: a footer takes three requests in a row.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from fineweb_shards.errors import BadFileError, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings
from fineweb_shards.sources.footer import Footer, read_footer
from fineweb_shards.sources.page_headers import ReadAt
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.sources.range_file import RangeFile, Remotes
from fineweb_shards.system.background import in_background
from fineweb_shards.types import Batch, TextChunk

# Neighbouring row groups are fetched with one request, including the columns that are not needed, if that is
# at most so much more than the text.
_MOST_OVERHEAD = 1.08
_LARGEST_FETCH_BYTES = 64 * 2**20
_READ_BUFFER_BYTES = 8 * 2**20


@dataclass
class _OpenFile:
    """A file whose footer is parsed."""

    parsed: Any  # the ParquetFile
    footer: Footer
    content: RangeFile
    is_nearly_all_text: bool  # the other columns are small: neighbouring row groups are fetched as one range


class RangedParquetFormat(ParquetFormat):
    """Parquet files that are read by range requests. A subclass says where they are."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        self.remotes = self.open_remotes()
        self._opened: dict[str, Future[_OpenFile]] = {}  # by path, those that are needed last at the end
        self._fetches: dict[tuple[str, int], Future[None]] = {}  # by path and position: batches to be read
        self._reading: str | None = None  # the path of the batch that is being read
        self._expected: set[str] = set()  # paths of files that will be listed next
        self._lock = threading.RLock()  # one thread receives orders, another one reads

    @abstractmethod
    def open_remotes(self) -> Remotes:
        """Return what fetches the files."""

    def expect(self, files: Sequence[InputFile]) -> None:
        """Open the current file and the next ones."""
        ours = [file for file in files if file.is_remote and file.kind == "parquet" and file.problem is None]
        with self._lock:
            self._expected = {file.path for file in ours}
        for file in ours:
            self._begin_opening(file)

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        return self.cut(file, position, min(self.settings.batch_bytes, limit_bytes))

    def _stripes(self, file: InputFile, group: int, rows: int, size: int) -> Iterator[Batch]:
        """Keep a large row group in one batch: if it were divided, every worker would fetch all of it."""
        yield Batch(file.index, group, group + 1, size)

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        opening = self._begin_opening(file, batch.address)
        begin = in_background(partial(self._begin_fetching, opening, batch))
        with self._lock:
            self._fetches[file.path, batch.position] = begin

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        """Open the file again as well: its footer, which says where a row group is, may be what is wrong."""
        with self._lock:
            self._rows = None
            if file.path in self._opened:
                self._close_file(file.path)
        self.prefetch(file, batch)

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        with self._lock:
            self._reading = file.path
            fetch = self._fetches.pop((file.path, batch.position), None)
        if fetch is not None:
            fetch.exception()  # waits; what went wrong is raised by reading
        opened = self._begin_opening(file, batch.address).result()
        opened.content.forget_before(self._ranges(opened, batch)[0][0])
        return super().chunks(file, batch)

    def footer(self, file: InputFile) -> Footer:
        return self._begin_opening(file).result().footer

    def columns(self, file: InputFile) -> list[str]:
        return self._columns(self._begin_opening(file).result())

    def open(self, file: InputFile) -> Any:
        return self._begin_opening(file).result().parsed

    def header_reader(self, file: InputFile, begin: int, end: int, *, large: bool) -> ReadAt | None:
        """Read only in what is fetched ahead. What may be too large is fetched first, if it is small in the
        file: it would be fetched next anyway. Of the others only the footer says how large they are."""
        content = self._begin_opening(file).result().content
        if large and end - begin <= _LARGEST_FETCH_BYTES:
            content.prefetch(begin, end)
        if not content.is_fetched(begin, end):
            return None
        return lambda offset, size: bytes(content.read_range(offset, min(offset + size, end)))

    def _begin_opening(self, file: InputFile, address: str | None = None) -> Future[_OpenFile]:
        """Open a file in the background, if it is not open, and close those that nobody needs."""
        with self._lock:
            if file.path not in self._opened:
                needed = {self._reading, *self._expected, *(path for path, _ in self._fetches)}
                for old in [path for path in list(self._opened)[:-1] if path not in needed]:
                    self._close_file(old)
                self._opened[file.path] = in_background(partial(self._open, file, address))
            elif address is not None:
                self.remotes.get(file, address)
            return self._opened[file.path]

    def _open(self, file: InputFile, address: str | None) -> _OpenFile:
        try:
            return self._open_once(file, address)
        except BadFileError:  # the footer may have been damaged on the way
            return self._open_once(file, address)

    def _open_once(self, file: InputFile, address: str | None) -> _OpenFile:
        content = RangeFile(self.remotes.get(file, address), self.retrier.observer)
        parsed = self.parse(file, content, _READ_BUFFER_BYTES)
        footer = read_footer(file, parsed, self.settings)
        if _largest_bytes(parsed.metadata, footer.path) <= _LARGEST_FETCH_BYTES:
            # What is fetched ahead is decoded where it is. Larger row groups are read a piece at a time.
            parsed = self.parse(file, content, 0, parsed.metadata)
        nearly_all_text = _is_nearly_all_text(parsed.metadata, footer.path)
        return _OpenFile(parsed, footer, content, nearly_all_text)

    def _columns(self, opened: _OpenFile) -> list[str]:
        """Return the columns to read; not FineWeb's token counts if those would need extra requests."""
        footer = opened.footer
        return list(footer.columns if opened.is_nearly_all_text else footer.needed_columns)

    def _close_file(self, path: str) -> None:
        opening = self._opened.pop(path)
        self.remotes.forget(path)
        if opening.done() and opening.exception() is None:
            opening.result().content.close()

    def _begin_fetching(self, opening: Future[_OpenFile], batch: Batch) -> None:
        if isinstance(opening.exception(), ShardError):
            return  # reading the batch will raise it again, and then it is reported
        opened = opening.result()
        for start, stop in self._ranges(opened, batch):
            if stop - start <= _LARGEST_FETCH_BYTES:
                opened.content.prefetch(start, stop)

    def _ranges(self, opened: _OpenFile, batch: Batch) -> list[tuple[int, int]]:
        """Return the ranges to fetch for a batch, in their order: all its row groups as one, or of each only
        the columns that are read."""
        metadata = opened.parsed.metadata
        columns = [opened.footer.path_of(name) for name in self._columns(opened)]
        groups = [_extents(metadata.row_group(i)) for i in range(batch.position, batch.end)]
        if opened.is_nearly_all_text:
            first = min(groups[0][name][0] for name in columns)
            return [(first, max(groups[-1][name][1] for name in columns))]
        return sorted(group[name] for group in groups for name in columns)

    def close(self) -> None:
        for path in list(self._opened):
            self._close_file(path)
        super().close()


def _is_nearly_all_text(metadata: Any, path: str) -> bool:
    groups = [_extents(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    everything = sum(stop - start for group in groups for start, stop in group.values())
    only_text = sum(group[path][1] - group[path][0] for group in groups if path in group)
    return everything <= _MOST_OVERHEAD * only_text


def _largest_bytes(metadata: Any, path: str) -> int:
    """Return the size of a column in the row group where it is largest, unpacked."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(i) for group in groups for i in range(group.num_columns))
    return max((chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == path), default=0)


def _extents(group: Any) -> dict[str, tuple[int, int]]:
    """Return the byte range of each column of a row group in the file."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return {
        chunk.path_in_schema: (start, start + chunk.total_compressed_size)
        for chunk, start in zip(chunks, starts, strict=True)
    }
