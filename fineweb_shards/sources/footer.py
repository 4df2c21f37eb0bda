"""Read a parquet file's footer, where the text is and how much of it, and check it before it is used.

The parent reads footers too, so a damaged one must never crash it, but become an error with the file's name:
pyarrow checks the syntax, this module the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa

from fineweb_shards.errors import BadFileError, suggest
from fineweb_shards.sources.base import InputFile, ReadSettings, first_line
from fineweb_shards.sources.row_filter import load_filter
from fineweb_shards.sources.rows import TOKEN_COUNT_COLUMNS, TOKEN_COUNT_VOCABULARY, is_text
from fineweb_shards.sources.token_rows import holds_ids
from fineweb_shards.sources.where import Where

# What pyarrow raises for damaged bytes; ValueError for a column name that is no UTF-8.
_PYARROW_ERRORS = (OSError, pa.ArrowException, ValueError, OverflowError)
_WHERE_HINT = "Correct --where: numbers without quotes, texts in quotes; see docs/input.md."
_FINEWEB_COLUMNS = {"text", "id", "dump", "url", "file_path", "token_count"}


@dataclass(frozen=True, slots=True)
class Footer:
    """The values of a footer that are used, checked."""

    needed_columns: tuple[str, ...]  # without which no document can be read: theirs, and what --where needs
    count_columns: tuple[str, ...]  # to read as well: token_count and id, in FineWeb's files
    group_rows: tuple[int, ...]  # the number of rows of each row group
    group_bytes: tuple[int, ...]  # the size of each row group's text, or of its ids in memory
    first_rows: tuple[int, ...]  # the number, in the file, of each row group's first row
    note: str | None  # to be shown to the user
    path: str  # of the documents' values in the file: their column or, of lists, `column.list.element`

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: the documents' first, then those that are needed, then the others."""
        return tuple(dict.fromkeys((*self.needed_columns, *self.count_columns)))

    def path_of(self, column: str) -> str:
        """Return the path of a column's values in the file."""
        return self.path if column == self.needed_columns[0] else column


def read_footer(file: InputFile, opened: Any, settings: ReadSettings) -> Footer:
    """Return the footer of a ParquetFile; BadFileError if its values contradict each other."""
    wanted = settings.column
    with translated_pyarrow_errors(f"{file.path}: the footer is damaged"):
        schema, metadata = opened.schema_arrow, opened.metadata
        _check_column(file, schema, settings)
        stored = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        is_list = settings.tokens_column is not None
        index = _find_items(schema, stored, wanted) if is_list else _find_texts(stored, wanted)
        if index is None:
            raise pa.ArrowInvalid(f"it has no data for the column {wanted!r}")
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows = tuple(int(group.num_rows) for group in groups)
        chunks = [group.column(index) for group in groups]
        sizes = tuple(int(chunk.total_uncompressed_size) for chunk in chunks)
        if is_list:  # however small they are in the file
            sizes = tuple(int(chunk.num_values) * settings.vocabulary.dtype.itemsize for chunk in chunks)
        if min((*rows, *sizes), default=0) < 0 or sum(rows) != metadata.num_rows:
            raise pa.ArrowInvalid(f"it counts {metadata.num_rows:,} rows, its row groups {sum(rows):,}")
        counted = settings.vocabulary == TOKEN_COUNT_VOCABULARY and not is_list
        count_columns, note = _find_count_columns(file, schema, wanted) if counted else ((), None)
        needed = tuple(dict.fromkeys((wanted, *_check_where_columns(file, schema, settings.where))))
    first_rows = tuple(accumulate(rows, initial=0))
    return Footer(needed, count_columns, rows, sizes, first_rows, note, stored[index].path)


@contextmanager
def translated_pyarrow_errors(what: str) -> Iterator[None]:
    """Turn pyarrow's errors into a BadFileError whose message begins with `what`."""
    try:
        yield
    except MemoryError:
        raise  # also pyarrow's subclass of it: the file is not damaged, and no row may be left out
    except _PYARROW_ERRORS as error:
        raise BadFileError(f"{what}: {first_line(error)}.") from error


def _check_column(file: InputFile, schema: pa.Schema, settings: ReadSettings) -> None:
    """Refuse a name that is not that of one column of texts, or of lists of ids. Dots in it don't select
    fields of a struct."""
    wanted, hint = settings.column, settings.column_hint()
    kind = _type_of(file, schema, wanted, hint)
    fits, what = (
        (is_text, "text") if settings.tokens_column is None else (holds_ids, "lists of whole numbers")
    )
    if not fits(kind):
        raise BadFileError(f"{file.path}: column {wanted!r} holds {kind}, not {what}.", hint)


def _find_texts(stored: Sequence[Any], column: str) -> int | None:
    """Return which of the file's columns holds the texts of this one; None if none does."""
    # By name and path: a column `a.b` and the field `b` of a struct `a` have the same path.
    return next((i for i, one in enumerate(stored) if one.name == one.path == column), None)


def _find_items(schema: pa.Schema, stored: Sequence[Any], column: str) -> int | None:
    """Return which of the file's columns holds the items of these lists; None if none does."""
    # By counting: lists `a` and `a.list` may both have items of the path `a.list.element`.
    index = sum(_count_stored(field.type) for field in list(schema)[: schema.names.index(column)])
    fits = index < len(stored) and f"{stored[index].path}.".startswith(f"{column}.")
    return index if fits else None


def _count_stored(kind: Any) -> int:
    """Return how many columns of a file a column of the schema has: one for each field inside it."""
    if isinstance(kind, pa.BaseExtensionType):
        return _count_stored(kind.storage_type)
    if not pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        return 1
    return sum(_count_stored(kind.field(i).type) for i in range(kind.num_fields))


def _type_of(file: InputFile, schema: pa.Schema, wanted: str, hint: str) -> Any:
    """Return the type of the one column of this name; BadFileError if there is none, or more than one."""
    count = schema.names.count(wanted)
    if count != 1:
        found = f"{count} columns are called {wanted!r}" if count else f"there is no column {wanted!r}"
        outer = wanted.partition(".")[0]
        if not count and outer != wanted and outer in schema.names:
            hint = f"A field inside {outer!r} can't be read: write it to a column of its own. {hint}"
        raise BadFileError(f"{file.path}: {found}; the columns are: {', '.join(schema.names)}.", hint)
    return schema.field(wanted).type


def _check_where_columns(file: InputFile, schema: pa.Schema, where: Where | None) -> tuple[str, ...]:
    """Return the columns that --where needs; refuse one that is not there or holds other values."""
    row_filter = load_filter(where)
    if where is None or row_filter is None:
        return ()
    for name in where.columns:
        hint = suggest(name, schema.names, "Check the names in --where.")
        problem = row_filter.find_wrong_type(name, _type_of(file, schema, name, hint))
        if problem is not None:
            raise BadFileError(f"{file.path}: column {name!r} {problem}.", _WHERE_HINT)
    return where.columns


def _find_count_columns(
    file: InputFile, schema: pa.Schema, text_column: str
) -> tuple[tuple[str, ...], str | None]:
    """Return FineWeb's columns about the tokens of `text`, and a note if they can't be used."""
    names = schema.names
    unique = all(names.count(name) == 1 for name in TOKEN_COUNT_COLUMNS)
    if text_column != "text" or not unique or not set(names) >= _FINEWEB_COLUMNS:
        return (), None
    count, name = (schema.field(column).type for column in TOKEN_COUNT_COLUMNS)
    if not pa.types.is_integer(count):
        return (), f"{file.path}: token_count holds {count}, not whole numbers, and is not compared with ours"
    readable = is_text(name) or pa.types.is_integer(name)
    return (TOKEN_COUNT_COLUMNS if readable else TOKEN_COUNT_COLUMNS[:1]), None
