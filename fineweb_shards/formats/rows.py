"""Turn rows of parquet files into chunks of documents: cells of text of any type and length, or, with --tokens-column,
lists of ids.

A list of ids is one document, or several with EOTs between them. An EOT at either end of a row is dropped, because
documents are separated by one anyway. All ids are checked here, while their row is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_shards.formats.base import decode_texts, is_utf8
from fineweb_shards.formats.columns import Template
from fineweb_shards.texts import NO_TEXTS, Ids, TextBuffer, Texts, TokenLists
from fineweb_shards.tokenizers.cuts import LONGEST_UNCUT_BYTES, Cut, find_cuts
from fineweb_shards.types import Counts, Origin, Positions, TextChunk
from fineweb_shards.vocabulary import GPT2, CutRule, Vocabulary

# FineWeb has the number of GPT-2 tokens of every document, without EOT.
TOKEN_COUNT_COLUMNS = ("token_count", "id")
TOKEN_COUNT_VOCABULARY = GPT2
_LONG_CELL_BYTES = 4 * 2**20
# Longer rows are cut: only the ids of a piece are in memory twice.
_LONG_ROW_IDS = 2**20


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are documents to encode, and how many were left out for which reason."""

    wanted: Any  # an Arrow array of true and false
    counts: Counts


def plain_type(kind: Any) -> Any:
    """Return the type inside dictionaries and extension types."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return kind


def is_text(kind: Any) -> bool:
    """Return whether a column of this type holds text, also as a dictionary, a view or an extension type."""
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return plain_type(kind) in texts


def holds_ids(kind: Any) -> bool:
    """Return whether a column of this type holds lists of whole numbers, also as an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds_ids(kind.storage_type)
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks) and bool(pa.types.is_integer(kind.value_type))


def unwrap(column: Any) -> Any:
    """Convert a column of any type that `is_text` accepts to string, binary, large string or large binary. Inner types
    first: pyarrow can't decode a dictionary of views, and casts an extension type of them to wrong bytes. It can cast
    plain views."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return unwrap(column.storage)
    if pa.types.is_dictionary(kind):
        return unwrap(column.dictionary).take(column.indices)  # `take` checks the indices
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


# The buffers of columns, because pyarrow's `to_numpy` imports pandas, which takes a worker 0.3 s and 50 MB


def _integers_of(column: Any) -> Ids:
    """Return the cells of a column of integers; where it has nulls, any value."""
    dtype = np.dtype(str(column.type))  # int8 … uint64 have the same names in both
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _boundaries_of(column: Any, *, is_large: bool) -> Positions:
    """Return the positions in a column's data where its texts or lists begin, and where the last one ends."""
    boundaries, first, count = column.buffers()[1], column.offset, len(column)
    if boundaries is None or not count:
        return np.zeros(1, np.int64)
    return np.frombuffer(boundaries, np.int64 if is_large else np.int32, first + count + 1)[first:].astype(np.int64)


def _bits_of(column: Any, buffer: int) -> NDArray[np.bool_]:
    """Return the bits of a column's buffer: which cells are valid (0; only with nulls), or true (1)."""
    bits = np.unpackbits(np.frombuffer(column.buffers()[buffer], np.uint8), bitorder="little")
    found: NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] != 0
    return found


# Texts


def make_bytes(data: bytes) -> Any:
    """Return an Arrow scalar, from buffers because `pa.scalar` also imports pandas."""
    boundaries = pa.py_buffer(np.array([0, len(data)], np.int64).tobytes())
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, boundaries, pa.py_buffer(data)])[0]


def fill_template(template: Template, columns: Sequence[Any]) -> Any:
    """Like `Template.fill`, for whole unwrapped columns."""
    import pyarrow.compute as pc  # here: it takes 40 ms, and is seldom needed

    texts = [column.cast(pa.large_binary()) for column in columns]
    first, *literals = map(make_bytes, template.literals)
    pieces = [first, *(piece for pair in zip(texts, literals, strict=True) for piece in pair)]
    joined = pc.binary_join_element_wise(*pieces, make_bytes(b""), null_handling="replace")
    is_document = reduce(pc.or_, [text.is_valid() for text in texts])
    return pc.if_else(is_document, joined, pa.nulls(1, pa.large_binary())[0])


def split_rows(
    rows: Any,
    first_row: int,
    rule: CutRule | None,
    count_columns: Sequence[str] = TOKEN_COUNT_COLUMNS,
    selection: Selection | None = None,
) -> Iterator[TextChunk]:
    """Yield the texts of unwrapped rows as chunks without cursors: a single one, or several for huge cells. The text is
    the first column; `first_row` is the number of the first row in the file; `rule` says where a cell may be cut. The
    `count_columns` are optional; without `selection` all rows are wanted."""
    column = rows.column(0)
    if selection is None and column.null_count:
        selection = Selection(column.is_valid(), Counts(skipped_documents=column.null_count))
    left_out = selection.counts if selection else Counts()
    kept = _bits_of(selection.wanted, 1) if selection else np.ones(len(column), np.bool_)
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    boundaries, data = _boundaries_of(column, is_large=is_large), column.buffers()[2]
    cells = TextBuffer(b"" if data is None else memoryview(data), boundaries[:-1][kept], boundaries[1:][kept])
    size_bytes = int((cells.ends - cells.starts).sum())
    if size_bytes > 2 * _LONG_CELL_BYTES:
        # A very long cell, or many long ones: copy one at a time.
        yield TextChunk(NO_TEXTS, None, None, counts=left_out)
        for row in np.flatnonzero(kept).tolist():
            yield from _split_cell(column[row], first_row + row, rule)
        return
    names = rows.schema.names
    counted = {name: rows.column(names.index(name)) for name in count_columns if name in names}
    ids, stated, tokens = counted.get("id"), counted.get("token_count"), None
    if stated is not None:
        numbers = _integers_of(stated)
        if numbers.dtype == np.uint64:
            numbers = np.minimum(numbers, np.uint64(2**63 - 1))
        tokens = numbers.astype(np.int64)
        tokens = (np.where(_bits_of(stated, 0), tokens, -1) if stated.null_count else tokens)[kept]
    if ids is not None and selection is not None:
        ids = ids.filter(selection.wanted)
    texts, replaced = Texts(cells), 0
    as_text = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    try:
        column.view(as_text.get(column.type, column.type)).validate(full=True)
    except pa.ArrowInvalid:  # some writers don't check that strings are valid UTF-8
        pairs = zip(cells.starts.tolist(), cells.ends.tolist(), strict=True)
        texts, replaced = decode_texts(bytes(cells.data[start:end]) for start, end in pairs)
    origin = Origin(0, len(texts), first_row + np.flatnonzero(kept), ids, tokens)
    counts = Counts(size_bytes, replaced_characters=replaced)
    yield TextChunk(texts, None, None, counts=left_out + counts, origins=(origin,))


def _split_cell(cell: Any, row: int, rule: CutRule | None) -> Iterator[TextChunk]:
    """Yield one cell as chunks of about `_LONG_CELL_BYTES`, cut where tokens can be joined again. A cell that can't be
    encoded stays in one piece, so that it is left out as a whole."""
    data = memoryview(cell.as_buffer())
    cuts = [Cut(0), *find_cuts(data, _LONG_CELL_BYTES, rule), Cut(len(data))]
    longest_bytes = max(end.position - start.position for start, end in pairwise(cuts))
    if rule != "gpt2" and longest_bytes > LONGEST_UNCUT_BYTES:
        cuts = [cuts[0], cuts[-1]]
    for start, end in pairwise(cuts):
        piece = data[start.position : end.position]
        texts, replaced = Texts(TextBuffer(piece, np.zeros(1, np.int64), np.array([len(piece)]))), 0
        if not is_utf8(piece):
            texts, replaced = decode_texts([bytes(piece)])
        yield TextChunk(
            texts,
            None,
            None,
            starts_mid_document=start.position > 0,
            ends_mid_document=end.position < len(data),
            starts_at_seam=start.seam,
            ends_at_seam=end.seam,
            counts=Counts(len(piece), 0, replaced),
            origins=(Origin(0, 1, np.array([row])),),
        )


def append_chunk(chunk: TextChunk, part: TextChunk) -> TextChunk:
    """Append `part` to `chunk`. If `part` starts in the middle of a document, `chunk` must be empty."""
    documents: Any = chunk.documents or part.documents  # an empty one is neither texts nor ids
    if chunk.documents and part.documents:
        documents = documents + part.documents
    first = chunk if chunk.documents else part
    return replace(
        chunk,
        documents=documents,
        starts_mid_document=first.starts_mid_document,
        starts_at_seam=first.starts_at_seam,
        ends_at_seam=part.ends_at_seam,
        ends_mid_document=part.ends_mid_document,
        counts=chunk.counts + part.counts,
        problems=chunk.problems + part.problems,
        origins=chunk.origins + tuple(replace(o, first=o.first + len(chunk.documents)) for o in part.origins),
    )


# Lists of ids


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of ids in one array, in order: row i is `ids[starts[i]:ends[i]]`."""

    ids: Ids
    starts: Positions
    ends: Positions
    valid: NDArray[np.bool_] | None = None  # which ids are not null; None: all

    @classmethod
    def from_arrays(cls, arrays: list[Ids]) -> TokenRows:
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        ends = np.cumsum(lengths)
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int64), ends - lengths, ends)

    def find_wrong(self, vocabulary: Vocabulary) -> dict[int, str]:
        """Return a phrase about each row that holds anything but ids of the vocabulary."""

        def describe(start: int, end: int) -> str | None:
            ids = self.ids[start:end]
            if len(ids) and self.valid is not None and not self.valid[start:end].all():
                return "has a null among its ids"
            return _describe_wrong_id(int(ids.min()), int(ids.max()), vocabulary) if len(ids) else None

        if not len(self.starts) or describe(self.starts[0], self.ends[-1]) is None:
            return {}
        found = map(describe, self.starts.tolist(), self.ends.tolist())
        return {row: phrase for row, phrase in enumerate(found) if phrase is not None}

    def without_outer_eots(self, vocabulary: Vocabulary) -> TokenRows:
        starts, ends = self.starts.copy(), self.ends.copy()
        filled = np.flatnonzero(starts < ends)
        starts[filled[vocabulary.find_eots(self.ids[starts[filled]])]] += 1
        filled = np.flatnonzero(starts < ends)
        ends[filled[vocabulary.find_eots(self.ids[ends[filled] - 1])]] -= 1
        return TokenRows(self.ids, starts, ends, self.valid)

    def to_documents(self, vocabulary: Vocabulary) -> TokenLists:
        """Return the documents of the rows, split at EOTs."""
        if not len(self.starts):
            return TokenLists()
        first, last = int(self.starts[0]), int(self.ends[-1])
        ids = self.ids[first:last].astype(vocabulary.dtype)
        starts, ends = self.starts - first, self.ends - first
        eots = vocabulary.find_eots(ids)
        row = np.searchsorted(starts, eots, side="right") - 1
        inside = eots[(row >= 0) & (eots < ends[row])]  # not between two rows
        if len(inside):
            starts, ends = np.sort(np.append(starts, inside + 1)), np.sort(np.append(ends, inside))
        lengths = ends - starts
        if lengths.sum() < len(ids):
            # Drop the ids between documents: EOTs, or rows that were not chosen.
            boundaries = np.column_stack([starts, ends]).ravel()
            runs = np.diff(boundaries, prepend=0)
            ids = ids[: boundaries[-1]][np.repeat(np.resize([False, True], len(runs)), runs)]
        return TokenLists((ids, lengths))


def _describe_wrong_id(least: int, most: int, vocabulary: Vocabulary) -> str | None:
    """Return a phrase about the first of two ids that the vocabulary lacks; None if it has both."""
    for value in (least, most):
        if not 0 <= value < vocabulary.size:
            return f"has the id {value}, but those of {vocabulary.name} are 0 to {vocabulary.size - 1}"
    return None


def parse_ids(value: Any, vocabulary: Vocabulary) -> Ids:
    """Return a JSON value as ids; TypeError or ValueError, with a phrase, if it is not a list of ids."""
    if not isinstance(value, list):
        raise TypeError(f"is not a list of ids but a {type(value).__name__}")
    others = {*map(type, value)} - {int}
    if others:
        raise TypeError(f"has a {others.pop().__name__} among its ids")
    if wrong := _describe_wrong_id(min(value, default=0), max(value, default=0), vocabulary):
        raise ValueError(wrong)
    return np.array(value, vocabulary.dtype)


def split_token_rows(
    rows: Any,
    first_row: int,
    vocabulary: Vocabulary,
    leave_out: Callable[[str], str],
    selection: Selection | None = None,
) -> Iterator[TextChunk]:
    """Yield the documents of unwrapped rows as chunks without cursors: a single one, or several for long rows. The
    arguments are those of `split_rows`, with ids in the first column. `leave_out` receives a sentence about each bad
    row, and raises an error or returns the text to report."""
    column = rows.column(0)
    if selection is None and column.null_count:
        selection = Selection(column.is_valid(), Counts(skipped_documents=column.null_count))
    counts = selection.counts if selection else Counts()
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    boundaries = _boundaries_of(column, is_large=pa.types.is_large_list(column.type))
    valid = _bits_of(column.values, 0) if column.values.null_count else None
    kept = _bits_of(selection.wanted, 1) if selection else np.ones(len(column), np.bool_)
    found = TokenRows(_integers_of(column.values), boundaries[:-1][kept], boundaries[1:][kept], valid)
    numbers = first_row + np.flatnonzero(kept)
    wrong = found.find_wrong(vocabulary)
    problems = tuple(leave_out(f"row {numbers[row]:,} {phrase}") for row, phrase in wrong.items())
    if wrong:
        starts, ends = (np.delete(boundaries, [*wrong]) for boundaries in (found.starts, found.ends))
        found = replace(found, starts=starts, ends=ends)
        counts += Counts(bad_parts=len(wrong))
    found = found.without_outer_eots(vocabulary)
    if int((found.ends - found.starts).sum()) <= 2 * _LONG_ROW_IDS:
        documents = found.to_documents(vocabulary)
        yield TextChunk(documents, None, None, counts=counts, problems=problems)
        return
    yield TextChunk(NO_TEXTS, None, None, counts=counts, problems=problems)
    for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
        for first in range(start, max(end, start + 1), _LONG_ROW_IDS):  # cut anywhere: no token can be torn
            last = min(first + _LONG_ROW_IDS, end)
            piece = TokenRows(found.ids, np.array([first]), np.array([last])).to_documents(vocabulary)
            yield TextChunk(piece, None, None, starts_mid_document=first > start, ends_mid_document=last < end)
