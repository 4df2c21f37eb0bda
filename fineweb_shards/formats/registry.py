"""All formats: the class that reads each, the extensions of its files, and how it reads them.

Classes are imported by name when needed, because they load pyarrow and NumPy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """A format. One without extensions can't be chosen by --format."""

    reader: str  # module and class, relative to this package
    endings: tuple[str, ...] = ()
    has_columns: bool = True  # for --where and --text-column; without them a file is one text
    has_ids: bool = True  # a column may hold lists of token ids: --tokens-column
    is_text: bool = False  # can be read front to back, compressed or from a pipe; small files can share a batch
    was_text: bool = False  # an earlier version read local files with these extensions as plain text
    by_ranges: bool = True  # listing batches reads little of a file; otherwise it reads the whole file


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
    """Return a file's format and compression by its name; None for unknown ones."""
    stem, last = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(last)
    suffix = os.path.splitext(stem)[1] if compression else last
    return BY_ENDING.get(suffix), compression
