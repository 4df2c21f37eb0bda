"""Rows of parquet as chunks of text: whatever the column's type, and however long a cell is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_shards.sources.base import decode_text
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut
from fineweb_shards.types import Counts, Origin, TextChunk

# FineWeb says of every document how many GPT-2 tokens it has, EOT not counted.
CLAIM_COLUMNS = ["token_count", "id"]
_LONG_CELL_BYTES = 4 * 2**20
_CUT_WINDOW_BYTES = 64 * 1024


def is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    return any(check(kind) for check in checks)


def split_rows(rows: Any, first_row: int) -> Iterator[TextChunk]:
    """A stretch of rows as chunks without cursors: one for all, or several where a cell is huge.

    `first_row` is where in the file the stretch begins.
    """
    names = rows.schema.names
    column = rows.column(next(i for i, name in enumerate(names) if name not in CLAIM_COLUMNS))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    size_bytes = pc.sum(pc.binary_length(column)).as_py() or 0
    if size_bytes > 2 * _LONG_CELL_BYTES:
        # Somewhere in it is a long cell, or many middling ones: row by row, without copying all.
        for row in range(len(column)):
            yield from _split_cell(column[row], first_row + row)
        return
    skipped, places = column.null_count, np.arange(first_row, first_row + len(rows))
    if skipped:
        valid = column.is_valid()
        rows, column, places = rows.filter(valid), column.filter(valid), places[valid.to_numpy(False)]
    texts, replaced = _to_texts(column)
    ids = tokens = None
    if "token_count" in names:
        ids = rows.column(names.index("id"))
        tokens = rows.column(names.index("token_count")).fill_null(-1).to_numpy(zero_copy_only=False)
    origin = Origin(0, len(texts), places, ids, tokens)
    counts = Counts(size_bytes, skipped, replaced)
    yield TextChunk(texts, None, None, counts=counts, origins=(origin,))


def _to_texts(column: Any) -> tuple[list[str], int]:
    """The texts of a column without nulls, and how many characters had to be replaced."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            return column.to_pylist(), 0
        except UnicodeDecodeError:  # some writers don't check
            column = column.cast(pa.large_binary())
    decoded = [decode_text(data) for data in column.to_pylist()]
    return [text for text, _ in decoded], sum(replaced for _, replaced in decoded)


def _split_cell(cell: Any, row: int) -> Iterator[TextChunk]:
    if not cell.is_valid:
        yield TextChunk([], None, None, counts=Counts(skipped_documents=1))
        return
    data = memoryview(cell.as_buffer())
    position, inside, seam = 0, False, False
    while True:
        end = position + _LONG_CELL_BYTES
        if end + CONTEXT_BYTES >= len(data):
            end, next_seam, last = len(data), False, True
        else:
            low = end - _CUT_WINDOW_BYTES
            window = bytes(data[low - CONTEXT_BYTES : end + CONTEXT_BYTES])
            cut = find_cut(window, CONTEXT_BYTES, len(window) - CONTEXT_BYTES)
            assert cut is not None, "there is always a place to cut in a kilobyte"
            end, next_seam, last = low - CONTEXT_BYTES + cut.position, cut.seam, False
        text, replaced = decode_text(bytes(data[position:end]))
        yield TextChunk(
            [text],
            None,
            None,
            inside=inside,
            unfinished=not last,
            seam=seam,
            counts=Counts(end - position, 0, replaced),
            origins=(Origin(0, 1, np.array([row])),),
        )
        if last:
            return
        position, inside, seam = end, True, next_seam


def append_chunk(chunk: TextChunk, part: TextChunk) -> TextChunk:
    """`part` at the end of `chunk`, which is empty where `part` begins inside a document."""
    empty = not chunk.documents
    return replace(
        chunk,
        documents=chunk.documents + part.documents if chunk.documents else part.documents,
        inside=part.inside if empty else chunk.inside,
        seam=part.seam if empty else chunk.seam,
        unfinished=part.unfinished,
        counts=chunk.counts + part.counts,
        origins=chunk.origins + tuple(replace(o, first=o.first + len(chunk.documents)) for o in part.origins),
    )
