"""Read parquet files: batches are sequences of row groups; of the columns only those are read that hold the
documents, FineWeb's token counts, and what --where needs.

With `ParquetFile`, never with a dataset scan: those abort or hang at exit when left half read
(arrow#45214). A worker keeps its current file open and the footer parsed, because parsing the footer of
a FineWeb-Edu file (2 GB, 700 row groups) takes longer than reading one row group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_shards.errors import BadFileError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import Format, InputFile, ReadSettings, read_error
from fineweb_shards.sources.footer import Footer, read_footer, translated_pyarrow_errors
from fineweb_shards.sources.page_headers import DICTIONARY_PAGE, ReadAt, read_pages
from fineweb_shards.sources.row_filter import load_filter
from fineweb_shards.sources.rows import TOKEN_COUNT_VOCABULARY, append_chunk, split_rows, unwrap
from fineweb_shards.sources.token_rows import split_token_rows
from fineweb_shards.texts import NO_TEXTS
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk
from fineweb_shards.units import show_bytes

# Rows are decoded a slice at a time and encoded a chunk at a time: both fit a worker's share of memory,
# however large the row groups are.
_SLICE_ROWS = 128
_SLICE_TOKEN_ROWS = 2048  # they are checked and copied all at once, so that few at a time would be slow
_SLICE_BYTES = 512 * 1024
_CHUNK_BYTES = 12 * 2**20  # of two row groups as FineWeb has them one block is made
# What the rows of a slice may take if all of them repeat the longest value of the row group's dictionary.
_REPEATED_BYTES = 256 * 2**20
# How many times `batch_bytes` a batch has: each costs the parent a millisecond, and from the hub a request.
_BATCHES_AT_ONCE = 2
# Stream column chunks instead of loading them whole: a row group may hold gigabytes.
_READ_BUFFER_BYTES = 2**20
_SMALL_SHARE = 0.05  # of the text's size
# No document has so many tokens: a `token_count` with larger numbers counts something else.
_LARGEST_TOKEN_COUNT = 2**40


@dataclass(frozen=True, slots=True)
class StatedExtent:
    """What a file says about its documents: their number, and their tokens without EOT."""

    documents: int
    tokens: int


class ParquetFormat(Format):
    """Documents that are the rows of a column of texts, or of lists of ids."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        _use_small_memory_pool()
        self._file: tuple[str, Any] | None = None
        self._content: Any = None  # of that file
        self._rows: _RowReader | None = None
        self._footer: tuple[str, Footer] | None = None
        self._group_counts: dict[int, int] = {}
        self.row_filter = load_filter(settings.where)

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        return self.cut(file, position, _BATCHES_AT_ONCE * self.settings.batch_bytes)

    def cut(self, file: InputFile, position: int, wanted: int) -> Iterator[Batch]:
        """Yield batches of at least `wanted` bytes of text each, from a row group on."""
        footer = self.footer(file)
        groups = self._group_counts[file.index] = len(footer.group_rows)
        first, size = position, 0
        for group in range(position, groups):
            group_size = footer.group_bytes[group]
            if group_size >= 2 * wanted:
                if size:
                    yield Batch(file.index, first, group, size)
                yield from self._stripes(file, group, footer.group_rows[group], group_size)
                first, size = group + 1, 0
                continue
            size += group_size
            if size >= wanted:
                yield Batch(file.index, first, group + 1, size)
                first, size = group + 1, 0
        if first < groups:
            yield Batch(file.index, first, groups, size)

    def _stripes(self, file: InputFile, group: int, rows: int, size: int) -> Iterator[Batch]:
        """Yield batches of some rows each for a large row group (pandas writes a million rows into one)."""
        parts = max(1, min(rows, size // self.settings.batch_bytes))
        for first, end in pairwise(rows * i // parts for i in range(parts + 1)):
            yield Batch(file.index, group, group + 1, size // parts, rows=(first, end))

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch. Only the first chunk has a start cursor and only the last an end
        cursor, and those only at the boundary of a row group."""
        footer = self.footer(file)
        begins = batch.rows is None or batch.rows[0] == 0
        chunk = TextChunk(NO_TEXTS, Cursor(batch.file, batch.position) if begins else None, None)
        if footer.note and begins and batch.position == 0:
            chunk = replace(chunk, problems=(footer.note,))
        size_bytes = 0
        for group in range(batch.position, batch.end):
            try:
                for part in self._read_group(file, group, batch.rows):
                    size_bytes += part.documents.size_bytes
                    if chunk.documents and size_bytes > _CHUNK_BYTES:
                        yield chunk
                        chunk, size_bytes = TextChunk(NO_TEXTS, None, None), part.documents.size_bytes
                    chunk = append_chunk(chunk, part)
                    if part.ends_mid_document:  # the rest of the document begins the next chunk
                        yield chunk
                        chunk, size_bytes = TextChunk(NO_TEXTS, None, None), 0
            except BadFileError as error:
                if not self.settings.skip_bad:
                    raise
                chunk = replace(
                    chunk,
                    counts=chunk.counts + Counts(bad_parts=1),
                    problems=(*chunk.problems, f"left out: {error.message}"),
                )
        ends = batch.rows is None or batch.rows[1] == footer.group_rows[batch.position]
        yield replace(chunk, end=Cursor(batch.file, batch.end) if ends else None)

    def share_before(self, file: InputFile, position: int) -> float | None:
        groups = self._group_counts.get(file.index)  # known once `batches` was called
        return position / groups if groups else None

    def open(self, file: InputFile) -> Any:
        """Return the ParquetFile, which stays open until another file is opened."""
        if self._file is None or self._file[0] != file.path:
            self.close()
            self.make_ready(file)
            self._content = self._open_local(file)
            self._file = (file.path, self.parse(file, self._content, _READ_BUFFER_BYTES))
        return self._file[1]

    def _open_local(self, file: InputFile) -> Any:
        try:
            return pa.OSFile(os.fsencode(file.path))  # as bytes: a name need not be UTF-8
        except OSError as error:
            raise read_error(file, error) from error

    def footer(self, file: InputFile) -> Footer:
        """Return the checked footer of a file, which is kept until another file's is asked for."""
        known = self._footer  # read once: the prefetching thread may replace it by the next file's
        if known is None or known[0] != file.path:
            known = (file.path, read_footer(file, self.open(file), self.settings))
            self._footer = known
        return known[1]

    def parse(self, file: InputFile, content: Any, buffer_bytes: int, metadata: Any = None) -> Any:
        """Open `content`, a file-like object, as a ParquetFile; this parses its footer, if not given."""
        if file.size_bytes == 0:
            raise BadFileError(f"{file.path}: the file is empty, so it is no parquet file.")
        with translated_pyarrow_errors(f"{file.path}: not a readable parquet file"):
            return pq.ParquetFile(content, metadata=metadata, buffer_size=buffer_bytes, pre_buffer=False)

    def close(self) -> None:
        if self._file is not None:
            self._file[1].close(force=True)
        self._file = self._rows = self._content = None

    def stated_extent(
        self, file: InputFile, least_tokens: int = 0, most_tokens: int | None = None
    ) -> StatedExtent | None:
        """Add up the file's `token_count` over the documents that --where and these limits keep; None if it
        has no usable one, or if the columns that --where needs are large."""
        opened, schema = self.open(file), self.open(file).schema_arrow
        if self.settings.vocabulary != TOKEN_COUNT_VOCABULARY or self.settings.tokens_column is not None:
            return None
        if self.settings.text_column != "text" or schema.names.count("token_count") != 1:
            return None
        if not pa.types.is_integer(schema.field("token_count").type):
            return None
        columns = list(dict.fromkeys(("token_count", *self.footer(file).needed_columns[1:])))
        if self.row_filter and not self._are_small(file, self.row_filter.where.columns):
            return None
        import pyarrow.compute as pc  # here: only the parent needs it, and it takes 40 ms

        documents = total = 0
        try:
            with translated_pyarrow_errors(f"{file.path}: the column token_count can't be read"):
                # In small batches: a damaged footer must not make pyarrow allocate a huge one.
                for rows in opened.iter_batches(columns=columns, use_threads=False):
                    found = [unwrap(rows.column(rows.schema.names.index(name))) for name in columns]
                    counts = found[0]
                    extremes = pc.min_max(counts).as_py()
                    if counts.null_count or extremes["min"] < 0 or extremes["max"] > _LARGEST_TOKEN_COUNT:
                        return None
                    if self.row_filter is not None:
                        met = self.row_filter.evaluate(pa.RecordBatch.from_arrays(found, columns))
                        counts = counts.filter(met)  # null: left out, too
                    counts = counts.filter(pc.greater_equal(counts, least_tokens)) if least_tokens else counts
                    if most_tokens is not None:
                        counts = counts.filter(pc.less_equal(counts, most_tokens))
                    documents += len(counts)
                    total += int(pc.sum(counts).as_py() or 0)
        except BadFileError:
            return None  # the text may be sound all the same
        return StatedExtent(documents, total)

    def _are_small(self, file: InputFile, columns: Sequence[str]) -> bool:
        """Tell whether columns are small beside the text, by the sizes in the footer."""
        metadata = self.open(file).metadata
        size_bytes = 0
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            size_bytes += sum(c.total_uncompressed_size for c in chunks if c.path_in_schema in columns)
        return size_bytes <= _SMALL_SHARE * sum(self.footer(file).group_bytes)

    def columns(self, file: InputFile) -> list[str]:
        """Return the columns to read of a file: the documents', what --where needs and, in FineWeb's files,
        token_count and id."""
        return list(self.footer(file).columns)

    def _read_group(self, file: InputFile, group: int, rows: tuple[int, int] | None) -> Iterator[TextChunk]:
        """Yield the documents of a row group, or of some of its rows, a slice at a time.

        A row group can only be read from its start. So the reader is kept for the next batch of the same row
        group: every worker reads a large row group only once, whichever rows it gets.
        """
        footer = self.footer(file)
        first, end = rows or (0, footer.group_rows[group])
        place = f"{file.path}: row group {group}"
        reader = self._rows
        if reader is None or reader.place != place or reader.next_row > first:
            most_rows = _SLICE_ROWS if self.settings.tokens_column is None else _SLICE_TOKEN_ROWS
            slice_rows = _slice_rows(footer.group_rows[group], footer.group_bytes[group], most_rows)
            try:
                slice_rows = self._check_pages(file, group, slice_rows)
            except BadFileError:
                if first == 0:  # of several batches of a row group, the first one reports it
                    raise
                return
            needed = len(footer.needed_columns)
            reader = _RowReader(place, self.open(file), group, self.columns(file), needed, slice_rows)
            self._rows = reader
        try:
            for row, row_slice in reader.read(first, end):
                selection = self.row_filter.select(row_slice) if self.row_filter else None
                first_row, vocabulary = footer.first_rows[group] + row, self.settings.vocabulary
                if self.settings.tokens_column is None:
                    rule = vocabulary.cut_rule
                    yield from split_rows(row_slice, first_row, rule, footer.count_columns, selection)
                else:
                    leave_out = partial(self._leave_out_row, file)
                    yield from split_token_rows(row_slice, first_row, vocabulary, leave_out, selection)
        except BadFileError:
            self._rows = None
            if reader.next_row >= first:  # if it broke before, the batch with those rows reports it
                raise

    def _check_pages(self, file: InputFile, group: int, slice_rows: int) -> int:
        """Return how many rows to decode at a time: `slice_rows`, or fewer if long values are repeated, of
        which the file has only one. BadFileError if there is no memory for a page of the row group, each of
        which is decoded whole."""
        footer = self.footer(file)
        paths = {footer.path_of(name): name for name in self.columns(file)}
        with translated_pyarrow_errors(f"{file.path}: row group {group} can't be read"):
            metadata = self.open(file).metadata.row_group(group)
            chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        for chunk in chunks:
            if chunk.path_in_schema not in paths:
                continue
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            average_bytes = chunk.total_uncompressed_size // max(1, metadata.num_rows)
            large = chunk.total_uncompressed_size > self.settings.largest_page_bytes
            read_at = self.header_reader(file, begin, begin + chunk.total_compressed_size, large=large)
            pages = list(read_pages(read_at, begin, begin + chunk.total_compressed_size)) if read_at else []
            largest_bytes = max((page.unpacked_bytes for page in pages), default=average_bytes)
            if largest_bytes > self.settings.largest_page_bytes:
                raise BadFileError(
                    f"{file.path}: row group {group}: a page of the column {paths[chunk.path_in_schema]!r} "
                    f"unpacks to {show_bytes(largest_bytes)}, and the memory budget has room for "
                    f"{show_bytes(self.settings.largest_page_bytes)}.",
                    "Give more with --max-memory, write documents of this length to text files, or leave out "
                    "the row group with --on-bad-file skip; the same command resumes.",
                )
            if pages and pages[0].kind == DICTIONARY_PAGE and pages[0].unpacked_bytes:
                repeated = metadata.num_rows - pages[0].values
                if min(slice_rows, repeated) * pages[0].unpacked_bytes > _REPEATED_BYTES:
                    slice_rows = max(1, min(slice_rows, _REPEATED_BYTES // pages[0].unpacked_bytes))
        return slice_rows

    def header_reader(self, file: InputFile, begin: int, end: int, *, large: bool) -> ReadAt | None:
        """Return a function that reads the headers of pages between these places; None if it would have to
        fetch too much. `large`: a page may be too large."""
        content = self._content
        return lambda offset, size: bytes(content.read_at(size, offset))

    def _leave_out_row(self, file: InputFile, sentence: str) -> str:
        """Return what to report about a bad row, or raise an error that says so."""
        hint = "Name the right --tokenizer, or leave out such rows: --on-bad-file skip."
        return self.leave_out(BadFileError(f"{file.path}: {sentence}.", hint))


def _use_small_memory_pool() -> None:
    """Have pyarrow allocate with jemalloc, where it has it. By default it does with mimalloc, which keeps
    47 MB more in every worker, for as much speed; malloc has ten times the page faults."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


class _RowReader:
    """Reads one row group from front to back.

    Where a damaged row group ends must depend on nothing but the file. So whole slices are decoded, whatever
    rows are asked for, and if columns that are not needed can't be read, the others are read without them.
    """

    def __init__(
        self, place: str, file: Any, group: int, columns: list[str], needed: int, slice_rows: int
    ) -> None:
        self.place = place
        self.next_row = 0
        self._file = file
        self._group = group
        self._columns = columns  # the documents' first
        self._needed = needed  # how many of them
        self._slice_rows = slice_rows
        self._rest: Any = None  # rows of the last slice that were not asked for yet
        self._slices: Iterator[Any] | None = None

    def read(self, first: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows from `first` to `end` a slice at a time, each with the number of its first row."""
        while self.next_row < end:
            rows = self._next_slice() if self._rest is None else self._rest
            begin, used = max(0, first - self.next_row), min(len(rows), end - self.next_row)
            self._rest = rows.slice(used) if used < len(rows) else None
            row, self.next_row = self.next_row + begin, self.next_row + used
            if begin < used:
                yield row, rows.slice(begin, used - begin)

    def _next_slice(self) -> Any:
        try:
            return self._decode_slice()
        except BadFileError:
            if len(self._columns) == self._needed:
                raise
        self._columns, self._slices = self._columns[: self._needed], None
        rows, decoded = self._decode_slice(), 0
        while decoded + len(rows) <= self.next_row:
            decoded += len(rows)
            rows = self._decode_slice()
        return rows.slice(self.next_row - decoded)

    def _decode_slice(self) -> Any:
        with translated_pyarrow_errors(f"{self.place} can't be read"):
            if self._slices is None:
                self._slices = self._file.iter_batches(
                    batch_size=self._slice_rows,
                    row_groups=[self._group],
                    columns=self._columns,
                    use_threads=False,
                )
            rows = next(self._slices, None)
            if rows is None:
                raise pa.ArrowInvalid(f"it ends after {self.next_row} rows")
            # By position of the exact name: pyarrow takes `a` for `a.b` as well.
            found = [rows.column(rows.schema.names.index(name)) for name in self._columns]
            return pa.RecordBatch.from_arrays([unwrap(column) for column in found], self._columns)


def _slice_rows(rows: int, size_bytes: int, most_rows: int = _SLICE_ROWS) -> int:
    """Return how many rows to decode at a time, so that a slice stays small by the sizes in the footer.

    It must not depend on a setting that may change, because where a damaged row group ends depends on it.
    """
    average = size_bytes // max(1, rows) + 1
    return min(max(_SLICE_BYTES // average, 1), most_rows)
