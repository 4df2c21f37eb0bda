"""Turn parquet rows into chunks of text, whatever the column's type and however long a cell is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_shards.formats.text_check import decode_texts, is_utf8
from fineweb_shards.texts import NO_TEXTS, TextBuffer, Texts, TokenLists
from fineweb_shards.tokenizers.cuts import LONGEST_UNCUT_BYTES, Cut, find_cuts
from fineweb_shards.types import Counts, Origin, TextChunk
from fineweb_shards.vocabulary import GPT2, CutRule

# FineWeb has for every document the number of its GPT-2 tokens, without EOT.
TOKEN_COUNT_COLUMNS = ("token_count", "id")
TOKEN_COUNT_VOCABULARY = GPT2
_LONG_CELL_BYTES = 4 * 2**20
_LARGEST_INT64 = 2**63 - 1
_NO_PLACES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of some rows are documents to encode, and how many are not for which reason."""

    wanted: Any  # an Arrow array of true and false
    counts: Counts


def is_text(kind: Any) -> bool:
    """Tell whether a column of this type holds text, also as a dictionary, a view or an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_text(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return is_text(kind.value_type)
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    return any(check(kind) for check in checks)


def unwrap(column: Any) -> Any:
    """Convert a column of any type that `is_text` accepts to string, binary, large string or large binary.

    Inner types first: pyarrow can neither decode a dictionary of views nor cast an extension type of
    them (the bytes come out wrong); a view itself it can only cast.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return unwrap(column.storage)
    if pa.types.is_dictionary(kind):
        return unwrap(column.dictionary).take(column.indices)  # `take` checks the indices
    if pa.types.is_run_end_encoded(kind):
        import pyarrow.compute as pc  # here: seldom needed, and it takes 40 ms

        values = unwrap(column.values)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(column.run_ends, values))[
            column.offset : column.offset + len(column)
        ]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


def split_rows(
    rows: Any,
    first_row: int,
    rule: CutRule | None,
    count_columns: Sequence[str] = TOKEN_COUNT_COLUMNS,
    selection: Selection | None = None,
) -> Iterator[TextChunk]:
    """Yield the texts of unwrapped rows as chunks without cursors: one for all, or several for huge cells.

    The text is the first column; `first_row` is the number of the slice's first row in the file; `rule`
    says where a cell may be cut. The `count_columns` are used if they are there; without a `selection`
    all rows are wanted.
    """
    column = rows.column(0)
    if selection is None and column.null_count:
        selection = Selection(column.is_valid(), Counts(skipped_documents=column.null_count))
    left_out = selection.counts if selection else Counts()
    kept = bits_of(selection.wanted, 1) if selection else None
    cells = cells_of(column)
    if kept is not None:
        cells = TextBuffer(cells.data, cells.starts[kept], cells.ends[kept])
    size_bytes = int((cells.ends - cells.starts).sum())
    if size_bytes > 2 * _LONG_CELL_BYTES:
        # It has a very long cell, or many long ones: go row by row, to copy only one at a time.
        yield TextChunk(NO_TEXTS, None, None, counts=left_out)
        for row in range(len(column)):
            if kept is None or kept[row]:
                yield from _split_cell(column[row], first_row + row, rule)
        return
    names = rows.schema.names
    counted = {name: rows.column(names.index(name)) for name in count_columns if name in names}
    ids = counted.get("id")
    tokens = _stated_tokens(counted["token_count"]) if "token_count" in counted else None
    places = np.arange(first_row, first_row + len(rows))
    if selection is not None and kept is not None:
        ids = None if ids is None else ids.filter(selection.wanted)
        tokens, places = None if tokens is None else tokens[kept], places[kept]
    texts, replaced = _to_texts(column, cells)
    origin = Origin(0, len(texts), places, ids, tokens)
    counts = Counts(size_bytes, replaced_characters=replaced)
    yield TextChunk(texts, None, None, counts=left_out + counts, origins=(origin,))


def cells_of(column: Any) -> TextBuffer:
    """Return where the cells of an unwrapped column are in its buffer; they need not be valid UTF-8."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, boundaries, data = column.buffers()
    first, count = column.offset, len(column)
    if boundaries is None or not count:
        return TextBuffer(b"", _NO_PLACES, _NO_PLACES)
    places = np.frombuffer(boundaries, np.int64 if large else np.int32, first + count + 1)
    wide = places[first:].astype(np.int64)
    return TextBuffer(b"" if data is None else memoryview(data), wide[:-1], wide[1:])


def _stated_tokens(column: Any) -> NDArray[np.int64]:
    """Convert a column of integers of any width to int64; nulls become -1."""
    if not len(column):
        return _NO_PLACES
    # From the buffer: pyarrow's `to_numpy` imports pandas, which takes a worker 0.3 s and 50 MB.
    dtype = np.dtype(str(column.type))  # int8 … uint64 have the same names in both
    stated = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    if pa.types.is_uint64(column.type):
        stated = np.minimum(stated, np.uint64(_LARGEST_INT64))
    stated = stated.astype(np.int64)
    return np.where(bits_of(column, 0), stated, -1) if column.null_count else stated


def bits_of(column: Any, buffer: int) -> NDArray[np.bool_]:
    """Return the bits of a column's buffer: which cells are valid (0, if there are nulls), or true (1)."""
    bits = np.unpackbits(np.frombuffer(column.buffers()[buffer], np.uint8), bitorder="little")
    found: NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] != 0
    return found


def _to_texts(column: Any, cells: TextBuffer) -> tuple[Texts, int]:
    """Return the texts of a column's cells, and the number of characters that were replaced."""
    if _is_valid(column):
        return Texts(cells), 0
    pairs = zip(cells.starts.tolist(), cells.ends.tolist(), strict=True)
    return decode_texts(bytes(cells.data[start:end]) for start, end in pairs)


def _is_valid(column: Any) -> bool:
    """Tell whether all cells are valid UTF-8; some writers don't check that a string is."""
    if pa.types.is_binary(column.type):
        column = column.view(pa.string())
    elif pa.types.is_large_binary(column.type):
        column = column.view(pa.large_string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _split_cell(cell: Any, row: int, rule: CutRule | None) -> Iterator[TextChunk]:
    """Yield one cell as chunks of about `_LONG_CELL_BYTES`, cut where tokens can be joined again.

    A cell that is too long to be encoded stays in one piece, so that all of it is left out, not a part.
    """
    data = memoryview(cell.as_buffer())
    cuts = [Cut(0), *find_cuts(data, _LONG_CELL_BYTES, rule), Cut(len(data))]
    longest_bytes = max(end.position - start.position for start, end in pairwise(cuts))
    if rule != "gpt2" and longest_bytes > LONGEST_UNCUT_BYTES:
        cuts = [cuts[0], cuts[-1]]
    for start, end in pairwise(cuts):
        piece = data[start.position : end.position]
        texts, replaced = (_one_text(piece), 0) if is_utf8(piece) else decode_texts([bytes(piece)])
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


def _one_text(data: memoryview) -> Texts:
    """Return a text that is all of `data`, which is not copied."""
    return Texts(TextBuffer(data, np.zeros(1, np.int64), np.array([len(data)])))


def append_chunk(chunk: TextChunk, part: TextChunk) -> TextChunk:
    """Append `part` to `chunk`. If `part` starts in the middle of a document, `chunk` must be empty."""
    empty = not chunk.documents
    return replace(
        chunk,
        documents=_join(chunk.documents, part.documents),
        starts_mid_document=part.starts_mid_document if empty else chunk.starts_mid_document,
        starts_at_seam=part.starts_at_seam if empty else chunk.starts_at_seam,
        ends_at_seam=part.ends_at_seam,
        ends_mid_document=part.ends_mid_document,
        counts=chunk.counts + part.counts,
        problems=chunk.problems + part.problems,
        origins=chunk.origins + tuple(replace(o, first=o.first + len(chunk.documents)) for o in part.origins),
    )


def _join(first: Texts | TokenLists, second: Texts | TokenLists) -> Texts | TokenLists:
    """Join documents of one kind; none are of either kind."""
    if not first or not second:
        return first or second
    if isinstance(first, Texts) and isinstance(second, Texts):
        return first + second
    assert isinstance(first, TokenLists)
    assert isinstance(second, TokenLists)
    return first + second
