"""Open a parquet file: read its footer and the headers of its pages, and check them before use.

The parent reads footers too, so a damaged one must become an error with the file's name, never a crash: pyarrow checks
the syntax, this module the values. The headers of pages state their unpacked sizes. Pages are decoded whole, so a cell
of a gigabyte, perhaps a few kilobytes in the file, takes several gigabytes of memory. pyarrow neither limits that nor
exposes the headers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_shards.errors import BadFileError, suggest
from fineweb_shards.formats.base import ReadSettings, first_line
from fineweb_shards.formats.row_filter import RowFilter
from fineweb_shards.formats.rows import TOKEN_COUNT_COLUMNS, TOKEN_COUNT_VOCABULARY, holds_ids, is_text
from fineweb_shards.storage.place import ByteSource, InputFile
from fineweb_shards.units import show_bytes

# Raised by pyarrow for damaged bytes; ValueError for a column name that is not UTF-8.
_PYARROW_ERRORS = (OSError, pa.ArrowException, ValueError, OverflowError)
# Stream column chunks instead of loading them whole: a row group may hold gigabytes.
_BUFFER_BYTES, _REMOTE_BUFFER_BYTES = 2**20, 8 * 2**20
# Neighbouring row groups are fetched with one request, unneeded columns included, if that is at most this many times
# the text.
_MOST_OVERHEAD = 1.08
LARGEST_FETCH_BYTES = 64 * 2**20
# The largest size of a slice whose rows all repeat the longest value of the row group's dictionary.
_REPEATED_BYTES = 256 * 2**20
_FINEWEB_COLUMNS = {"text", "id", "dump", "url", "file_path", "token_count"}


@dataclass(frozen=True, slots=True)
class Footer:
    needed_columns: tuple[str, ...]  # those of the documents, and of --where
    count_columns: tuple[str, ...]  # token_count and id, in FineWeb's files
    group_rows: tuple[int, ...]  # the number of rows of each row group
    group_bytes: tuple[int, ...]  # the size of each row group's documents: of their text, or of their ids in memory
    first_rows: tuple[int, ...]  # the number, in the file, of each row group's first row
    paths: tuple[str, ...]  # of the documents' values in the file: their columns or, for lists, `column.list.element`


def read_footer(file: InputFile, opened: Any, settings: ReadSettings) -> Footer:
    """Return the footer of a ParquetFile; BadFileError if its values contradict each other, or if a column in the
    settings is missing, ambiguous, or of the wrong type."""
    is_list, template = settings.tokens_column is not None, settings.template
    with translated_pyarrow_errors(f"{file.path}: the footer is damaged"):
        schema, metadata = opened.schema_arrow, opened.metadata
        stored = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        indices = []
        for name in settings.columns:
            kind, index = _find_column(file, list(schema), name, settings.column_hint())
            if not (holds_ids(kind) if is_list else is_text(kind)):
                what = "lists of whole numbers" if is_list else "text"
                raise BadFileError(f"{file.path}: column {name!r} holds {kind}, not {what}.", settings.column_hint())
            # Found by counting, because a column `a.b` and the field `b` of `a` have the same path.
            if index >= len(stored) or not f"{stored[index].path}.".startswith(f"{name}."):
                raise pa.ArrowInvalid(f"it has no data for the column {name!r}")
            indices.append(index)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows = tuple(int(group.num_rows) for group in groups)
        chunks = [[group.column(index) for index in indices] for group in groups]
        values = [[int(chunk.total_uncompressed_size) for chunk in some] for some in chunks]
        if is_list:  # their size in memory, however small they are in the file
            values = [[int(chunk.num_values) * settings.vocabulary.dtype.itemsize for chunk in some] for some in chunks]
        literal_bytes = template.literal_bytes if template else 0
        sizes = tuple(sum(some) + count * literal_bytes for some, count in zip(values, rows, strict=True))
        if min((*rows, *chain.from_iterable(values)), default=0) < 0 or sum(rows) != metadata.num_rows:
            raise pa.ArrowInvalid(f"it counts {metadata.num_rows:,} rows, its row groups {sum(rows):,}")
        counted = settings.vocabulary == TOKEN_COUNT_VOCABULARY and settings.columns == ("text",)
        count_columns = _find_count_columns(schema) if counted and not is_list and template is None else ()
        if settings.where is not None:
            row_filter = RowFilter(settings.where)
            for name in settings.where.columns:
                hint = suggest(name, [*schema.names, *(one.path for one in stored)], "Check the names in --where.")
                if problem := row_filter.find_wrong_type(name, _find_column(file, list(schema), name, hint)[0]):
                    hint = "Correct --where: numbers without quotes, texts in quotes; see docs/input.md."
                    raise BadFileError(f"{file.path}: column {name!r} {problem}.", hint)
    first_rows = tuple(accumulate(rows, initial=0))
    paths = tuple(stored[index].path for index in indices)
    return Footer(settings.needed_columns, count_columns, rows, sizes, first_rows, paths)


@contextmanager
def translated_pyarrow_errors(what: str) -> Iterator[None]:
    """Turn pyarrow's errors into a BadFileError whose message begins with `what`."""
    try:
        yield
    except MemoryError:
        raise  # also pyarrow's subclass of it: the file is not damaged, so nothing may be left out
    except _PYARROW_ERRORS as error:
        raise BadFileError(f"{what}: {first_line(error)}.") from error


def _count_stored(kind: Any) -> int:
    """Return how many columns the file stores for a column of the schema: one for each innermost field."""
    if isinstance(kind, pa.BaseExtensionType):
        return _count_stored(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_count_stored(kind.field(i).type) for i in range(kind.num_fields))


def _find_column(
    file: InputFile, fields: Sequence[pa.Field], wanted: str, hint: str, struct: str = ""
) -> tuple[Any, int]:
    """Return the type of the only column, or field of a struct, of this name (see columns.py), and how many columns the
    file stores before it; BadFileError if there is none, or more than one. `fields` are those inside `struct`, a path
    that ends with a dot."""
    names, name = [field.name for field in fields], wanted.removeprefix(struct)
    outer, _, inner = name.partition(".")
    found = name if name in names or not inner else outer
    first = names.index(found) if found in names else len(names)
    index = sum(_count_stored(field.type) for field in fields[:first])
    if names.count(found) == 1:
        kind = fields[first].type
        if found == name:
            return kind, index
        if pa.types.is_struct(kind):
            inner_kind, inner_index = _find_column(file, list(kind), wanted, hint, f"{struct}{outer}.")
            return inner_kind, index + inner_index
    count = names.count(name)
    problem = f"{count} columns are called {wanted!r}" if count else f"there is no column {wanted!r}"
    shown = ", ".join(struct + name for name in names)
    raise BadFileError(f"{file.path}: {problem}; the columns are: {shown}.", hint)


def _find_count_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return FineWeb's columns about the tokens of `text`, if the file has usable ones."""
    names = schema.names
    if not set(names) >= _FINEWEB_COLUMNS or any(names.count(name) > 1 for name in TOKEN_COUNT_COLUMNS):
        return ()
    count, name = (schema.field(column).type for column in TOKEN_COUNT_COLUMNS)
    can_be_used = pa.types.is_integer(count) and (is_text(name) or pa.types.is_integer(name))
    return TOKEN_COUNT_COLUMNS if can_be_used else ()


@dataclass(frozen=True, slots=True)
class ParquetSource:
    file: InputFile
    content: ByteSource
    parsed: Any  # pyarrow's ParquetFile
    footer: Footer
    # The other columns are small compared with the text, so that neighbouring row groups are fetched as one range.
    # Otherwise FineWeb's token counts are not read, because they would take extra requests.
    is_nearly_all_text: bool

    @property
    def paths(self) -> dict[str, str]:
        """The columns to read, each with the path of its values in the file: first those of the documents, then those
        of --where, and FineWeb's token_count and id."""
        needed = self.footer.needed_columns
        names = (*needed, *self.footer.count_columns) if self.is_nearly_all_text else needed
        return {name: name for name in names} | dict(zip(needed, self.footer.paths, strict=False))

    def ranges(self, first_group: int, end_group: int) -> list[tuple[int, int]]:
        """Return the ranges to fetch for row groups, in order: one for all of them, or one for each column to read."""
        metadata, paths = self.parsed.metadata, self.paths.values()
        groups = [_extents(metadata.row_group(i)) for i in range(first_group, end_group)]
        if self.is_nearly_all_text:
            return [(min(groups[0][path][0] for path in paths), max(groups[-1][path][1] for path in paths))]
        return sorted(group[path] for group in groups for path in paths)

    def check_pages(self, group: int, slice_rows: int, largest_page_bytes: int) -> int:
        """Return how many rows to decode at a time: `slice_rows`, or fewer if rows repeat a long value of a dictionary.
        BadFileError if there is no memory for a page of the row group."""
        names, documents = {path: name for name, path in self.paths.items()}, self.footer.paths
        joined_bytes = 0  # of all columns of a template
        with translated_pyarrow_errors(f"{self.file.path}: row group {group} can't be read"):
            metadata = self.parsed.metadata.row_group(group)
            chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        for chunk in chunks:
            if chunk.path_in_schema not in names:
                continue
            begin, end = _extent(chunk)
            # A chunk that may unpack to too much but is small in the file is fetched now, because it would be fetched
            # next anyway. For the others, only the footer's sizes are known.
            may_be_large = chunk.total_uncompressed_size > largest_page_bytes // len(documents)
            if may_be_large and end - begin <= LARGEST_FETCH_BYTES:
                self.content.prefetch(begin, end)
            is_fetched = self.content.is_fetched(begin, end)
            pages = list(read_pages(self.content.read_at, begin, end)) if is_fetched else []
            average_bytes = chunk.total_uncompressed_size // max(1, metadata.num_rows)
            largest_bytes = max((page.unpacked_bytes for page in pages), default=average_bytes)
            pages_of = f"a page of the column {names[chunk.path_in_schema]!r} unpacks"
            if chunk.path_in_schema in documents[1:]:
                pages_of = "pages of the columns of --template unpack"
            if chunk.path_in_schema in documents:
                largest_bytes = joined_bytes = joined_bytes + largest_bytes
            if largest_bytes > largest_page_bytes:
                raise BadFileError(
                    f"{self.file.path}: row group {group}: {pages_of} to {show_bytes(largest_bytes)}, and the "
                    f"memory budget has room for {show_bytes(largest_page_bytes)}.",
                    "Raise --max-memory, write documents of this length to text files, or leave out the row group with "
                    "--on-bad-file skip; then rerun the command to resume.",
                )
            if pages and pages[0].kind == _DICTIONARY_PAGE:
                repeated, most_bytes = metadata.num_rows - pages[0].values, _REPEATED_BYTES // len(documents)
                if min(slice_rows, repeated) * pages[0].unpacked_bytes > most_bytes:
                    slice_rows = max(1, min(slice_rows, most_bytes // pages[0].unpacked_bytes))
        return slice_rows

    def close(self) -> None:
        self.parsed.close(force=True)
        self.content.close()


def open_parquet(file: InputFile, content: ByteSource, settings: ReadSettings, *, is_remote: bool) -> ParquetSource:
    if file.size_bytes == 0:
        raise BadFileError(f"{file.path}: the file is empty, so it is not a parquet file.")
    parsed = _parse(file, content, _REMOTE_BUFFER_BYTES if is_remote else _BUFFER_BYTES)
    footer = read_footer(file, parsed, settings)
    if not is_remote:
        return ParquetSource(file, content, parsed, footer, is_nearly_all_text=True)
    groups = [parsed.metadata.row_group(i) for i in range(parsed.metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    texts = [chunk for chunk in chunks if chunk.path_in_schema in footer.paths]
    if max((chunk.total_uncompressed_size for chunk in texts), default=0) <= LARGEST_FETCH_BYTES:
        # Prefetched bytes are decoded in place. Larger row groups are read piece by piece.
        parsed = _parse(file, content, 0, parsed.metadata)
    everything, only_text = (sum(chunk.total_compressed_size for chunk in some) for some in (chunks, texts))
    return ParquetSource(file, content, parsed, footer, everything <= _MOST_OVERHEAD * only_text)


def _parse(file: InputFile, content: ByteSource, buffer_bytes: int, metadata: Any = None) -> Any:
    with translated_pyarrow_errors(f"{file.path}: not a readable parquet file"):
        return pq.ParquetFile(content.for_arrow(), metadata=metadata, buffer_size=buffer_bytes, pre_buffer=False)


def _extents(group: Any) -> dict[str, tuple[int, int]]:
    return {chunk.path_in_schema: _extent(chunk) for chunk in map(group.column, range(group.num_columns))}


def _extent(chunk: Any) -> tuple[int, int]:
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


# Pages

_DICTIONARY_PAGE = 2
_HEADER_BYTES = 2**16  # more than any header, unless its statistics contain whole texts
_FIRST_BYTES = 256
_KINDS_OF_HEADERS = (5, 7, 8)  # fields that hold a struct whose first field is the number of values
# The types of Thrift's compact protocol that page headers use.
_TRUTH, _INTEGERS, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 8, 12


class Page(NamedTuple):
    """The sizes of one page, without its header."""

    kind: int
    unpacked_bytes: int
    packed_bytes: int
    values: int


def read_pages(read_at: Callable[[int, int], bytes], offset: int, end: int) -> Iterator[Page]:
    """Yield the pages of a column chunk, the bytes from `offset` to `end`, up to a damaged header, which reading the
    data will report. `read_at` takes an offset and a size."""
    while offset < end:
        for size in (_FIRST_BYTES, _HEADER_BYTES):
            header = io.BytesIO(read_at(offset, min(size, end - offset)))
            try:
                fields = _read_struct(header)
                values = next((fields[number] for number in _KINDS_OF_HEADERS if number in fields), 0)
                page = Page(fields[1], fields[2], fields[3], values)
                break
            except (LookupError, ValueError, OverflowError, RecursionError):
                continue
        else:
            return
        if min(page) < 0:
            return
        yield page
        offset += header.tell() + page.packed_bytes


def _read_struct(data: io.BytesIO) -> dict[int, int]:
    """Return the whole numbers in a struct of Thrift's compact protocol, by field; for a nested struct, its first."""
    number = 0
    fields: dict[int, int] = {}
    while first := data.read(1)[0]:
        number = number + (first >> 4) if first >> 4 else _read_integer(data)
        kind = first & 15
        if kind in _INTEGERS:
            fields[number] = _read_integer(data)
        elif kind == _STRUCT:
            fields[number] = _read_struct(data).get(1, 0)
        elif kind == _BINARY:
            data.seek(_read_varint(data), io.SEEK_CUR)
        elif kind not in _TRUTH:
            raise ValueError("no page header")
    return fields


def _read_varint(data: io.BytesIO) -> int:
    value = shift = 0
    while (byte := data.read(1)[0]) > 127:
        value, shift = value | (byte & 127) << shift, shift + 7
    return value | byte << shift


def _read_integer(data: io.BytesIO) -> int:
    value = _read_varint(data)
    return (value >> 1) ^ -(value & 1)
