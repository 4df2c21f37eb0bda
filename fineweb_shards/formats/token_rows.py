"""Turn rows that are lists of ids into documents of tokens: --tokens-column.

A row is one document, or several with EOTs between them. An EOT at either end of a row adds nothing: there is
one between two documents in any case. All ids are checked here, where it is known which row they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_shards.formats.rows import Selection, bits_of
from fineweb_shards.texts import NO_TEXTS, Ids, TokenLists
from fineweb_shards.types import Counts, Positions, TextChunk
from fineweb_shards.vocabulary import Vocabulary

# Longer rows are cut: the ids of a piece are in memory twice, those of a row only once, where they were read.
_LONG_ROW_IDS = 2**20


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of ids in one array: row i is `ids[starts[i]:ends[i]]`, and the rows are in this order."""

    ids: Ids
    starts: Positions
    ends: Positions
    valid: NDArray[np.bool_] | None = None  # which ids are there; None: all

    @classmethod
    def from_arrays(cls, arrays: list[Ids]) -> TokenRows:
        """Join arrays, each a row."""
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        ends = np.cumsum(lengths)
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int64), ends - lengths, ends)

    def take(self, chosen: Any) -> TokenRows:
        """Return some of the rows, chosen by their numbers or by true and false."""
        return TokenRows(self.ids, self.starts[chosen], self.ends[chosen], self.valid)

    def find_wrong(self, vocabulary: Vocabulary) -> dict[int, str]:
        """Return what is wrong with those rows that hold something else than ids of the vocabulary."""
        if not len(self.starts) or self._describe_wrong(self.starts[0], self.ends[-1], vocabulary) is None:
            return {}
        pairs = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        found = (self._describe_wrong(start, end, vocabulary) for start, end in pairs)
        return {row: phrase for row, phrase in enumerate(found) if phrase is not None}

    def _describe_wrong(self, start: int, end: int, vocabulary: Vocabulary) -> str | None:
        ids = self.ids[start:end]
        if not len(ids):
            return None
        if self.valid is not None and not self.valid[start:end].all():
            return "has a null among its ids"
        for value in (int(ids.min()), int(ids.max())):
            if not 0 <= value < vocabulary.size:
                return describe_wrong_id(value, vocabulary)
        return None

    def without_outer_eots(self, vocabulary: Vocabulary) -> TokenRows:
        """Return the rows without an EOT at their beginning, and without one at their end."""
        starts, ends = self.starts.copy(), self.ends.copy()
        filled = np.flatnonzero(starts < ends)
        starts[filled[vocabulary.find_eots(self.ids[starts[filled]])]] += 1
        filled = np.flatnonzero(starts < ends)
        ends[filled[vocabulary.find_eots(self.ids[ends[filled] - 1])]] -= 1
        return TokenRows(self.ids, starts, ends, self.valid)

    def to_documents(self, vocabulary: Vocabulary) -> TokenLists:
        """Return the documents of the rows, which are divided where an EOT is in them."""
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
            # Between the documents there are ids that belong to none: EOTs, or rows that were not chosen.
            boundaries = np.column_stack([starts, ends]).ravel()
            runs = np.diff(boundaries, prepend=0)
            ids = ids[: boundaries[-1]][np.repeat(np.resize([False, True], len(runs)), runs)]
        return TokenLists((ids, lengths))


def holds_ids(kind: Any) -> bool:
    """Tell whether a column of this type holds lists of whole numbers, also as an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds_ids(kind.storage_type)
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks) and bool(pa.types.is_integer(kind.value_type))


def parse_ids(value: Any, vocabulary: Vocabulary) -> Ids:
    """Return a JSON value as ids; TypeError or ValueError, with a phrase about it, if it is none."""
    if not isinstance(value, list):
        raise TypeError(f"is not a list of ids but a {type(value).__name__}")
    others = {*map(type, value)} - {int}
    if others:
        raise TypeError(f"has a {others.pop().__name__} among its ids")
    for id_ in (min(value, default=0), max(value, default=0)):
        if not 0 <= id_ < vocabulary.size:
            raise ValueError(describe_wrong_id(id_, vocabulary))
    return np.array(value, vocabulary.dtype)


def describe_wrong_id(value: int, vocabulary: Vocabulary) -> str:
    return f"has the id {value}, but those of {vocabulary.name} are 0 to {vocabulary.size - 1}"


def split_token_rows(
    rows: Any,
    first_row: int,
    vocabulary: Vocabulary,
    leave_out: Callable[[str], str],
    selection: Selection | None = None,
) -> Iterator[TextChunk]:
    """Yield the documents of unwrapped rows as chunks without cursors: one for all, or several for long rows.

    The ids are in the first column; `first_row` is the number of the slice's first row in the file. Of a bad
    row `leave_out` gets a sentence, and raises an error or returns what to report.
    """
    column = rows.column(0)
    if selection is None and column.null_count:
        selection = Selection(column.is_valid(), Counts(skipped_documents=column.null_count))
    counts = selection.counts if selection else Counts()
    found, numbers = rows_of(column), np.arange(first_row, first_row + len(column))
    if selection is not None:
        chosen = bits_of(selection.wanted, 1)
        found, numbers = found.take(chosen), numbers[chosen]
    wrong = found.find_wrong(vocabulary)
    problems = tuple(leave_out(f"row {numbers[row]:,} {phrase}") for row, phrase in wrong.items())
    if wrong:
        found = found.take(np.delete(np.arange(len(numbers)), [*wrong]))
        counts += Counts(bad_parts=len(wrong))
    found = found.without_outer_eots(vocabulary)
    if int((found.ends - found.starts).sum()) <= 2 * _LONG_ROW_IDS:
        documents = found.to_documents(vocabulary)
        yield TextChunk(documents, None, None, counts=counts, problems=problems)
        return
    yield TextChunk(NO_TEXTS, None, None, counts=counts, problems=problems)
    for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
        yield from _split_row(found.ids, start, end, vocabulary)


def _split_row(ids: Ids, start: int, end: int, vocabulary: Vocabulary) -> Iterator[TextChunk]:
    """Yield one row as chunks of at most `_LONG_ROW_IDS`, cut anywhere: no token can be torn."""
    for first in range(start, max(end, start + 1), _LONG_ROW_IDS):
        last = min(first + _LONG_ROW_IDS, end)
        yield TextChunk(
            TokenRows(ids, np.array([first]), np.array([last])).to_documents(vocabulary),
            None,
            None,
            starts_mid_document=first > start,
            ends_mid_document=last < end,
        )


def rows_of(column: Any) -> TokenRows:
    """Return where the rows of an unwrapped column are in its buffers."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.large_list(kind.value_type))
    values = column.values
    dtype = np.dtype(str(values.type))  # int8 … uint64 have the same names in both
    if not len(values):
        ids: Ids = np.empty(0, dtype)
    else:
        # From the buffer: pyarrow's `to_numpy` imports pandas, which takes a worker 0.3 s and 50 MB.
        ids = np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
    width = np.int64 if pa.types.is_large_list(column.type) else np.int32
    boundaries = np.zeros(1, np.int64)
    if len(column):
        boundaries = np.frombuffer(column.buffers()[1], width, column.offset + len(column) + 1)
        boundaries = boundaries[column.offset :].astype(np.int64)
    return TokenRows(ids, boundaries[:-1], boundaries[1:], bits_of(values, 0) if values.null_count else None)
