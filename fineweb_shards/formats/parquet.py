"""Read parquet files: batches are sequences of row groups; only the columns with the documents and FineWeb's token
counts, and those that --where needs, are read.

With `ParquetFile`, never with a dataset scan: those abort or hang at exit when left half read (arrow#45214). A worker
keeps its current file open with its parsed footer, because parsing the footer of a FineWeb-Edu file (2 GB, 700 row
groups) takes longer than reading a row group. Over the network a footer takes three sequential requests, so files are
opened in the background, the next one ahead of time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from fineweb_shards.errors import BadFileError, ShardError
from fineweb_shards.formats.base import Format, ReadSettings
from fineweb_shards.formats.columns import Template, take_column
from fineweb_shards.formats.parquet_file import (
    LARGEST_FETCH_BYTES,
    Footer,
    ParquetSource,
    open_parquet,
    translated_pyarrow_errors,
)
from fineweb_shards.formats.row_filter import RowFilter
from fineweb_shards.formats.rows import append_chunk, fill_template, split_rows, split_token_rows, unwrap
from fineweb_shards.storage.place import InputFile, Place
from fineweb_shards.system.background import in_background
from fineweb_shards.texts import NO_TEXTS
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk

# Rows are decoded slice by slice and encoded chunk by chunk: both fit a worker's share of memory, whatever the size of
# the row groups.
_SLICE_ROWS = 128
_SLICE_TOKEN_ROWS = 2048  # checked and copied together, so small slices would be slow
_SLICE_BYTES = 512 * 1024
_CHUNK_BYTES = 12 * 2**20  # two of FineWeb's row groups make one block
# The size of a batch, in `batch_bytes`: each costs the parent a millisecond, and from the hub a request.
_BATCHES_AT_ONCE = 2
_FILLED = "{}"  # the name of the column that a template makes
# Of the largest page: a template makes a sixth copy. Measured for 100 MB: 822 MB in all, 711 MB without a template.
_TEMPLATE_SHARE = 5 / 6
_SMALL_SHARE = 0.05  # of the text's size
# A `token_count` with larger numbers counts something else.
_LARGEST_TOKEN_COUNT = 2**40


@dataclass(frozen=True, slots=True)
class StatedExtent:
    """The number of a file's documents and of their tokens without EOTs, according to the file."""

    documents: int
    tokens: int


class ParquetFormat(Format):
    def __init__(self, settings: ReadSettings, place: Place | None = None) -> None:
        super().__init__(settings, place)
        # pyarrow's default, mimalloc, takes 47 MB more in every worker and is no faster; malloc has ten times the page
        # faults.
        if "jemalloc" in pa.supported_memory_backends():
            pa.set_memory_pool(pa.jemalloc_memory_pool())
        self._opened: dict[str, Future[ParquetSource]] = {}  # by path, in the order of opening
        self._fetches: dict[tuple[str, int], Future[None]] = {}  # by path and position: batches to be read
        self._reading: str | None = None  # the path of the current batch
        self._expected: set[str] = set()  # paths of files that will be listed next
        self._lock = threading.RLock()  # one thread receives orders, another reads
        self._rows: _RowReader | None = None
        self._group_counts: dict[int, int] = {}
        self.row_filter = RowFilter(settings.where) if settings.where else None

    # Listing batches

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        return self._cut(file, position, _BATCHES_AT_ONCE * self.settings.batch_bytes)

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        if not self.place.is_remote:
            return self.batches(file, position, False)
        return self._cut(file, position, min(self.settings.batch_bytes, limit_bytes))

    def _cut(self, file: InputFile, position: int, wanted: int) -> Iterator[Batch]:
        """Yield batches of at least `wanted` bytes of text each, starting at a row group."""
        footer = self.footer(file)
        groups = self._group_counts[file.index] = len(footer.group_rows)
        first, size = position, 0
        for group in range(position, groups):
            group_size = footer.group_bytes[group]
            is_large = group_size >= 2 * wanted
            if is_large:
                if size:
                    yield Batch(file.index, first, group, size)
                first, size = group, 0
            size += group_size
            if is_large and not self.place.is_remote:  # where every worker would fetch the whole row group
                rows = footer.group_rows[group]  # pandas writes a million into one row group
                parts = max(1, min(rows, group_size // self.settings.batch_bytes))
                for span in pairwise(rows * i // parts for i in range(parts + 1)):
                    yield Batch(file.index, group, group + 1, group_size // parts, rows=span)
                first, size = group + 1, 0
            elif size >= wanted:
                yield Batch(file.index, first, group + 1, size)
                first, size = group + 1, 0
        if first < groups:
            yield Batch(file.index, first, groups, size)

    def share_before(self, file: InputFile, position: int) -> float | None:
        groups = self._group_counts.get(file.index)  # known once `batches` was called
        return position / groups if groups else None

    # Open files

    def expect(self, files: Sequence[InputFile]) -> None:
        """Open the current file and the next ones, over the network."""
        if self.place.is_remote:
            with self._lock:
                self._expected = {file.path for file in files}
            for file in files:
                self._begin_opening(file)

    def footer(self, file: InputFile) -> Footer:
        """Return the checked footer of a file. The file stays open until another one is opened."""
        return self._begin_opening(file).result().footer

    def _begin_opening(self, file: InputFile, address: str | None = None) -> Future[ParquetSource]:
        """Open a file, over the network in the background, and close those no longer needed."""
        with self._lock:
            if file.path not in self._opened:
                needed = {self._reading, *self._expected, *(path for path, _ in self._fetches)}
                kept = list(self._opened)[:-1] if self.place.is_remote else list(self._opened)
                for old in [path for path in kept if path not in needed]:
                    self._close_file(old)
                opened: Future[ParquetSource] = Future()
                if self.place.is_remote:
                    opened = in_background(partial(self._open, file, address))
                else:
                    opened.set_result(self._open(file, address))
                self._opened[file.path] = opened
            return self._opened[file.path]

    def _open(self, file: InputFile, address: str | None) -> ParquetSource:
        is_remote = self.place.is_remote
        try:
            return open_parquet(file, self.place.open(file, address), self.settings, is_remote=is_remote)
        except BadFileError:
            if not is_remote:
                raise
        # The footer may have been damaged on the way.
        return open_parquet(file, self.place.open(file, address), self.settings, is_remote=is_remote)

    def _close_file(self, path: str) -> None:
        opening = self._opened.pop(path)
        if opening.done() and opening.exception() is None:
            opening.result().close()

    def close(self) -> None:
        self._rows = None
        for path in list(self._opened):
            self._close_file(path)

    # Fetching ahead

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        if not self.place.is_remote:
            return
        opening = self._begin_opening(file, batch.address)
        begin = in_background(partial(self._begin_fetching, opening, batch))
        with self._lock:
            self._fetches[file.path, batch.position] = begin

    def _begin_fetching(self, opening: Future[ParquetSource], batch: Batch) -> None:
        if isinstance(opening.exception(), ShardError):
            return  # raised again, and reported, when the batch is read
        opened = opening.result()
        for start, stop in opened.ranges(batch.position, batch.end):
            if stop - start <= LARGEST_FETCH_BYTES:
                opened.content.prefetch(start, stop)

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        """Open the file again as well: the damage may be in its footer."""
        with self._lock:
            self._rows = None
            if file.path in self._opened:
                self._close_file(file.path)
        self.prefetch(file, batch)

    # Reading

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch. Only the first chunk has a start cursor, and only the last an end cursor; both
        only at the boundary of a row group."""
        with self._lock:
            self._reading = file.path
            fetch = self._fetches.pop((file.path, batch.position), None)
        if fetch is not None:
            fetch.exception()  # waits; reading raises the error again
        opened = self._begin_opening(file, batch.address).result()
        if self.place.is_remote:
            opened.content.forget_before(opened.ranges(batch.position, batch.end)[0][0])
        footer = opened.footer
        begins = batch.rows is None or batch.rows[0] == 0
        chunk = TextChunk(NO_TEXTS, Cursor(batch.file, batch.position) if begins else None, None)
        size_bytes = 0
        for group in range(batch.position, batch.end):
            try:
                for part in self._read_group(opened, group, batch.rows):
                    size_bytes += part.documents.size_bytes
                    if chunk.documents and size_bytes > _CHUNK_BYTES:
                        yield chunk
                        chunk, size_bytes = TextChunk(NO_TEXTS, None, None), part.documents.size_bytes
                    chunk = append_chunk(chunk, part)
                    if part.ends_mid_document:  # the rest of the document begins the next chunk
                        yield chunk
                        chunk, size_bytes = TextChunk(NO_TEXTS, None, None), 0
            except BadFileError as error:
                problems = (*chunk.problems, self.leave_out(error))
                chunk = replace(chunk, counts=chunk.counts + Counts(bad_parts=1), problems=problems)
        ends = batch.rows is None or batch.rows[1] == footer.group_rows[batch.position]
        yield replace(chunk, end=Cursor(batch.file, batch.end) if ends else None)

    def _read_group(self, opened: ParquetSource, group: int, rows: tuple[int, int] | None) -> Iterator[TextChunk]:
        """Yield the documents of a row group, or of some of its rows, slice by slice. A row group can only be read from
        its start, so the reader is kept for the next batch: every worker reads a large row group at most once,
        whichever rows it gets."""
        footer, file, vocabulary = opened.footer, opened.file, self.settings.vocabulary
        first, end = rows or (0, footer.group_rows[group])
        place = f"{file.path}: row group {group}"
        reader = self._rows
        if reader is None or reader.place != place or reader.next_row > first:
            most_rows = _SLICE_ROWS if self.settings.tokens_column is None else _SLICE_TOKEN_ROWS
            slice_rows = _slice_rows(footer.group_rows[group], footer.group_bytes[group], most_rows)
            try:
                most_bytes = self.settings.largest_page_bytes
                if self.settings.template is not None:
                    most_bytes = int(most_bytes * _TEMPLATE_SHARE)
                slice_rows = opened.check_pages(group, slice_rows, most_bytes)
            except BadFileError:
                if first == 0:  # only the first batch of a row group reports it
                    raise
                return
            columns, template = list(opened.paths), self.settings.template
            reader = self._rows = _RowReader(place, opened.parsed, group, columns, slice_rows, template)
        try:
            for row, row_slice in reader.read(first, end):
                selection = self.row_filter.select(row_slice) if self.row_filter else None
                first_row = footer.first_rows[group] + row
                if self.settings.tokens_column is None:
                    rule = vocabulary.cut_rule
                    yield from split_rows(row_slice, first_row, rule, footer.count_columns, selection)
                else:
                    leave_out = partial(self._leave_out_row, file)
                    yield from split_token_rows(row_slice, first_row, vocabulary, leave_out, selection)
        except BadFileError:
            self._rows = None
            if reader.next_row >= first:  # an earlier error is reported by the batch with those rows
                raise

    def _leave_out_row(self, file: InputFile, sentence: str) -> str:
        hint = "Name the right --tokenizer, or leave out such rows: --on-bad-file skip."
        return self.leave_out(BadFileError(f"{file.path}: {sentence}.", hint))

    def stated_extent(
        self, file: InputFile, least_tokens: int = 0, most_tokens: int | None = None
    ) -> StatedExtent | None:
        """Sum the file's `token_count` over the documents that --where and these limits keep; None without a usable
        `token_count`, or if the columns that --where needs are large."""
        opened = self._begin_opening(file).result()
        if "token_count" not in opened.footer.count_columns:
            return None
        where_columns = self.row_filter.where.columns if self.row_filter else ()
        columns = list(dict.fromkeys(("token_count", *where_columns)))
        metadata = opened.parsed.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        chunks = chain.from_iterable(map(group.column, range(group.num_columns)) for group in groups)
        size_bytes = sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in where_columns)
        if size_bytes > _SMALL_SHARE * sum(opened.footer.group_bytes):
            return None
        import pyarrow.compute as pc  # here: only the parent needs it, and it takes 40 ms

        documents = total = 0
        try:
            with translated_pyarrow_errors(f"{file.path}: the column token_count can't be read"):
                # In small batches: a damaged footer must not make pyarrow allocate a huge one.
                for rows in opened.parsed.iter_batches(columns=columns, use_threads=False):
                    found = [unwrap(take_column(rows, name)) for name in columns]
                    counts = found[0]
                    extremes = pc.min_max(counts).as_py()
                    if counts.null_count or extremes["min"] < 0 or extremes["max"] > _LARGEST_TOKEN_COUNT:
                        return None
                    if self.row_filter is not None:
                        met = self.row_filter.evaluate(pa.RecordBatch.from_arrays(found, columns))
                        counts = counts.filter(met)  # also leaves out null
                    counts = counts.filter(pc.greater_equal(counts, least_tokens)) if least_tokens else counts
                    if most_tokens is not None:
                        counts = counts.filter(pc.less_equal(counts, most_tokens))
                    documents += len(counts)
                    total += int(pc.sum(counts).as_py() or 0)
        except BadFileError:
            return None  # the text may still be sound
        return StatedExtent(documents, total)


@dataclass
class _RowReader:
    """Reads one row group front to back. Always decodes whole slices, so that the end of a damaged one depends only on
    the file, not on the requested rows."""

    place: str
    _file: Any  # pyarrow's ParquetFile
    _group: int
    _columns: list[str]  # the documents' first
    _slice_rows: int
    _template: Template | None  # makes the documents of the first columns
    next_row: int = 0
    _rest: Any = None  # rows of the last slice that were not requested yet
    _slices: Iterator[Any] | None = None

    def read(self, first: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows from `first` to `end` in slices, each with the number of its first row."""
        while self.next_row < end:
            rows = self._next_slice() if self._rest is None else self._rest
            begin, used = max(0, first - self.next_row), min(len(rows), end - self.next_row)
            self._rest = rows.slice(used) if used < len(rows) else None
            row, self.next_row = self.next_row + begin, self.next_row + used
            if begin < used:
                yield row, rows.slice(begin, used - begin)

    def _next_slice(self) -> Any:
        with translated_pyarrow_errors(f"{self.place} can't be read"):
            if self._slices is None:
                self._slices = self._file.iter_batches(
                    batch_size=self._slice_rows, row_groups=[self._group], columns=self._columns, use_threads=False
                )
            rows = next(self._slices, None)
            if rows is None:
                raise pa.ArrowInvalid(f"it ends after {self.next_row} rows")
            columns, names = [unwrap(take_column(rows, name)) for name in self._columns], self._columns
            if self._template is not None:
                text = fill_template(self._template, columns[: len(self._template.columns)])
                columns, names = [text, *columns], [_FILLED, *names]
            return pa.RecordBatch.from_arrays(columns, names)


def _slice_rows(rows: int, size_bytes: int, most_rows: int = _SLICE_ROWS) -> int:
    """Return how many rows to decode at a time, so that a slice is small according to the footer. Must not depend on a
    setting that may change: the end of a damaged row group depends on it."""
    average = size_bytes // max(1, rows) + 1
    return min(max(_SLICE_BYTES // average, 1), most_rows)
