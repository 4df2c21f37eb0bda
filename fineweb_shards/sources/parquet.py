"""Parquet: batches are runs of row groups; only the text column is read (and FineWeb's token counts).

Read with `ParquetFile`, never with a dataset scan: those abort or hang at exit when left half read
(arrow#45214). A worker keeps its current file open and the footer parsed, because parsing the footer of
a FineWeb-Edu file (2 GB, 700 row groups) costs more than reading one row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_shards.errors import BadFileError
from fineweb_shards.sources.base import Format, InputFile, ReadSettings, read_error
from fineweb_shards.sources.rows import CLAIM_COLUMNS, append_chunk, is_text, split_rows
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk

# Rows are decoded a stretch at a time and encoded a chunk at a time: both small enough for a worker's
# share of memory, whatever the row groups are like.
_STRETCH_ROWS = 128
_STRETCH_BYTES = 512 * 1024
_CHUNK_BYTES = 8 * 2**20
# Stream column chunks instead of loading them whole: a row group may hold gigabytes.
_READ_BUFFER_BYTES = 2**20
_FINEWEB_COLUMNS = {"text", "id", "dump", "url", "file_path", "token_count"}


class ParquetFormat(Format):
    batches_at_once = 1  # larger ones where a request costs more than its bytes

    def __init__(self, settings: ReadSettings) -> None:
        super().__init__(settings)
        self._file: tuple[str, Any] | None = None
        self._rows: _RowReader | None = None
        self._first_rows: dict[str, list[int]] = {}
        self._group_counts: dict[int, int] = {}

    def batches(self, file: InputFile, position: int, inside: bool) -> Iterator[Batch]:
        metadata = self.open(file).metadata
        self._group_counts[file.index] = metadata.num_row_groups
        column = self.text_column_index(file, metadata)
        first, size = position, 0
        wanted = self.settings.batch_bytes * self.batches_at_once
        for group in range(position, metadata.num_row_groups):
            group_size = metadata.row_group(group).column(column).total_uncompressed_size
            if group_size >= 2 * wanted:
                if size:
                    yield Batch(file.index, first, group, size)
                rows = metadata.row_group(group).num_rows
                yield from self._stripes(file, group, rows, group_size)
                first, size = group + 1, 0
                continue
            size += group_size
            if size >= wanted:
                yield Batch(file.index, first, group + 1, size)
                first, size = group + 1, 0
        if first < metadata.num_row_groups:
            yield Batch(file.index, first, metadata.num_row_groups, size)

    def _stripes(self, file: InputFile, group: int, rows: int, size: int) -> Iterator[Batch]:
        """A large row group (pandas writes a million rows into one) in batches of some rows."""
        parts = max(1, min(rows, size // self.settings.batch_bytes))
        borders = [rows * i // parts for i in range(parts + 1)]
        for first, end in pairwise(borders):
            yield Batch(file.index, group, group + 1, size // parts, rows=(first, end))

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """Only a batch's first chunk can begin with a cursor, and only its last can end with one."""
        begins = batch.rows is None or batch.rows[0] == 0
        chunk = TextChunk([], Cursor(batch.file, batch.position) if begins else None, None)
        for group in range(batch.position, batch.end):
            try:
                for row, rows in self._read_rows(file, group, batch.rows):
                    for part in split_rows(rows, row):
                        size_bytes = chunk.counts.text_bytes + part.counts.text_bytes
                        if chunk.documents and size_bytes > _CHUNK_BYTES:
                            yield chunk
                            chunk = TextChunk([], None, None)
                        chunk = append_chunk(chunk, part)
                        if part.unfinished:  # its rest comes in a chunk of its own
                            yield chunk
                            chunk = TextChunk([], None, None)
            except BadFileError as error:
                if not self.settings.skip_bad:
                    raise
                chunk = replace(
                    chunk,
                    counts=chunk.counts + Counts(bad_parts=1),
                    problems=(*chunk.problems, f"left out: {error.message}"),
                )
        ends = batch.rows is None or batch.rows[1] == self._group_rows(file, batch.position)
        yield replace(chunk, end=Cursor(batch.file, batch.end) if ends else None)

    def share_before(self, file: InputFile, position: int) -> float | None:
        groups = self._group_counts.get(file.index)  # known once the file was listed
        return position / groups if groups else None

    def _group_rows(self, file: InputFile, group: int) -> int:
        return int(self.open(file).metadata.row_group(group).num_rows)

    def open(self, file: InputFile) -> Any:
        """The ParquetFile, kept open until another file is asked for."""
        if self._file is None or self._file[0] != file.path:
            self.close()
            self._file = (file.path, self.parse(file, file.path, _READ_BUFFER_BYTES))
        return self._file[1]

    def _first_row(self, file: InputFile, group: int) -> int:
        """The row of the file with which a row group begins."""
        if file.path not in self._first_rows:
            metadata = self.open(file).metadata
            sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            self._first_rows = {file.path: [0, *accumulate(sizes)]}
        return self._first_rows[file.path][group]

    def parse(self, file: InputFile, content: Any, buffer_bytes: int) -> Any:
        """Parse the footer of `content`, a path or something that can be read like a file."""
        try:
            return pq.ParquetFile(content, buffer_size=buffer_bytes, pre_buffer=False)
        except OSError as error:
            if error.errno is not None:
                raise read_error(file, error) from error
            raise _damaged(file, error) from error
        except pa.ArrowException as error:
            raise _damaged(file, error) from error

    def close(self) -> None:
        if self._file is not None:
            self._file[1].close()
        self._file = self._rows = None

    def text_column_index(self, file: InputFile, metadata: Any) -> int:
        """Where the text column is; an error that names the columns where there is none."""
        schema = self.open(file).schema_arrow
        wanted = self.settings.text_column
        if schema.names.count(wanted) != 1:
            found = "two columns" if wanted in schema.names else "no column"
            raise BadFileError(
                f"{file.path}: there is {found} {wanted!r}; the columns are: {', '.join(schema.names)}.",
                "Name the one with the text: --text-column.",
            )
        kind = schema.field(wanted).type
        if not is_text(kind):
            raise BadFileError(
                f"{file.path}: column {wanted!r} holds {kind}, not text.",
                "Name the column with the text: --text-column.",
            )
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        return paths.index(wanted)

    def sum_column(self, file: InputFile, name: str) -> int | None:
        """The sum of a whole-number column over the file, or None where there is no such column."""
        opened = self.open(file)
        schema = opened.schema_arrow
        if name not in schema.names or not pa.types.is_integer(schema.field(name).type):
            return None
        try:
            return int(pc.sum(opened.read(columns=[name]).column(0)).as_py() or 0)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(file, error) from error

    def columns(self, file: InputFile) -> list[str]:
        """What is read of a file: the text, and in FineWeb's files what they say about its tokens."""
        names = set(self.open(file).schema_arrow.names)
        return [self.settings.text_column, *(CLAIM_COLUMNS if names >= _FINEWEB_COLUMNS else [])]

    def _read_rows(
        self, file: InputFile, group: int, rows: tuple[int, int] | None
    ) -> Iterator[tuple[int, Any]]:
        """The columns of a row group, or of some of its rows, a stretch at a time, each with its first row.

        A row group can only be read from its start. So the place reached is kept for the next stripe:
        every worker reads a large row group once, whichever stripes it gets.
        """
        opened = self.open(file)
        start = self._first_row(file, group)
        first, end = rows or (0, self._group_rows(file, group))
        place = (file.path, group)
        if self._rows is None or self._rows.place != place or self._rows.next_row > first:
            self._rows = _RowReader(place, opened, self.columns(file))
        try:
            for row, stretch in self._rows.read(first, end):
                yield start + row, stretch
        except (OSError, pa.ArrowException) as error:
            broken_row, self._rows = self._rows.next_row, None
            if broken_row < first:
                return  # the stripe in which it breaks reports it
            raise BadFileError(
                f"{file.path}: row group {group} can't be read: {_first_line(error)}."
            ) from error


class _RowReader:
    """Reads one row group from front to back."""

    def __init__(self, place: tuple[str, int], file: Any, columns: list[str]) -> None:
        self.place = place
        group = place[1]
        self.next_row = 0
        self._rest: Any = None  # rows that were read together with earlier ones
        self._stretches = file.iter_batches(
            batch_size=_stretch_rows(file.metadata.row_group(group), columns[0]),
            row_groups=[group],
            columns=columns,
            use_threads=False,
        )

    def read(self, first: int, end: int) -> Iterator[tuple[int, Any]]:
        while self.next_row < end:
            rows = self._rest
            if rows is None:
                rows = next(self._stretches, None)
                if rows is None:
                    raise pa.ArrowInvalid(f"it ends after {self.next_row} rows")
            begin, used = max(0, first - self.next_row), min(len(rows), end - self.next_row)
            self._rest = rows.slice(used) if used < len(rows) else None
            row, self.next_row = self.next_row + begin, self.next_row + used
            if begin < used:
                yield row, rows.slice(begin, used - begin)


def _stretch_rows(group: Any, column: str) -> int:
    """So many rows that a stretch stays small, by what the footer says of their average length.

    It must not depend on a setting: where a damaged row group breaks off depends on it.
    """
    chunks = (group.column(i) for i in range(group.num_columns))
    size = next(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    average = size // max(1, group.num_rows) + 1
    return int(min(max(_STRETCH_BYTES // average, 1), _STRETCH_ROWS))


def _damaged(file: InputFile, error: Exception) -> BadFileError:
    if file.size_bytes == 0:
        return BadFileError(f"{file.path}: the file is empty, so it is no parquet file.")
    return BadFileError(f"{file.path}: not a readable parquet file: {_first_line(error)}.")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
