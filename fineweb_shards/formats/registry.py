"""All formats: the class that reads each, the endings of its files, and how it reads them.

The classes are named, not imported: pyarrow and NumPy are only loaded for what is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """A line of the table. A format without endings can't be chosen by --format."""

    reader: str  # module and class, relative to this package
    endings: tuple[str, ...] = ()
    has_columns: bool = True  # which --where and --text-column name; without, a file is one text
    has_ids: bool = True  # a column may hold lists of token ids: --tokens-column
    # The content is text: a file can also be read front to back, compressed or from a pipe, and small ones can be read
    # together.
    is_text: bool = False
    was_text: bool = False  # an earlier version read local files with these endings as plain text
    by_ranges: bool = True  # batches are listed by reading little of a file; if not, all of it is read once


TEXT, ROWS, PILES = "text", "rows", "piles"
_DELIMITED = {"has_ids": False, "is_text": True, "was_text": True, "by_ranges": False}
FORMATS = {
    "parquet": FormatEntry("parquet.ParquetFormat", (".parquet",)),
    "jsonl": FormatEntry("jsonl.JsonLinesFormat", (".jsonl", ".ndjson", ".json"), is_text=True),
    "csv": FormatEntry("csv.CsvFormat", (".csv",), **_DELIMITED),
    "tsv": FormatEntry("csv.TsvFormat", (".tsv", ".tab"), **_DELIMITED),
    TEXT: FormatEntry("text.TextFormat", (".txt", ".text", ".md"), has_columns=False, has_ids=False, is_text=True),
    ROWS: FormatEntry("hub_rows.HubRowsFormat"),  # of a dataset that only `datasets` can read
    PILES: FormatEntry("piles.PilesFormat", has_columns=False),  # of a shuffle: its second pass reads them
}
BY_ENDING = {ending: name for name, entry in FORMATS.items() for ending in entry.endings}
CHOICES = tuple(name for name, entry in FORMATS.items() if entry.endings)  # for --format
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}


def split_suffixes(name: str) -> tuple[str | None, str | None]:
    """Return format and compression by a file's name; None for a format that the name does not tell."""
    stem, last = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(last)
    suffix = os.path.splitext(stem)[1] if compression else last
    return BY_ENDING.get(suffix), compression
