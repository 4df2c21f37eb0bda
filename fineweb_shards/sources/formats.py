"""The table of all formats: the class that reads each, and the endings of its files.

The classes are named, not imported, so that a run over local files never loads the hub's clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from fineweb_shards.sources.base import Format


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """A line of the table. Formats without endings can't be chosen by --format, only by where a file is:
    `hub-` and `bucket-` are read by ranges, `download-` from the disk, once they are there."""

    reader: str  # module and class, relative to this package
    endings: tuple[str, ...] = ()
    reads_streams: bool = True  # compressed files and pipes, which can only be read front to back


FORMATS = {
    "parquet": FormatEntry("parquet.ParquetFormat", (".parquet",), reads_streams=False),
    "jsonl": FormatEntry("jsonl.JsonLinesFormat", (".jsonl", ".ndjson", ".json")),
    "csv": FormatEntry("delimited.CsvFormat", (".csv",)),
    "tsv": FormatEntry("delimited.TsvFormat", (".tsv", ".tab")),
    "text": FormatEntry("text.TextFormat", (".txt", ".text", ".md")),
    "hub-parquet": FormatEntry("hub.ranged.HubParquetFormat"),
    "hub-jsonl": FormatEntry("hub.ranged.HubJsonLinesFormat"),
    "hub-text": FormatEntry("hub.ranged.HubTextFormat"),
    "bucket-parquet": FormatEntry("bucket.formats.BucketParquetFormat"),
    "bucket-jsonl": FormatEntry("bucket.formats.BucketJsonLinesFormat"),
    "bucket-csv": FormatEntry("bucket.formats.BucketCsvFormat"),
    "bucket-tsv": FormatEntry("bucket.formats.BucketTsvFormat"),
    "bucket-text": FormatEntry("bucket.formats.BucketTextFormat"),
    "download-parquet": FormatEntry("hub.downloads.DownloadedParquet"),
    "download-jsonl": FormatEntry("hub.downloads.DownloadedJsonLines"),
    "download-csv": FormatEntry("hub.downloads.DownloadedCsv"),
    "download-tsv": FormatEntry("hub.downloads.DownloadedTsv"),
    "download-text": FormatEntry("hub.downloads.DownloadedText"),
    "hub-rows": FormatEntry("hub.rows.HubRowsFormat"),
}
BY_ENDING = {ending: name for name, entry in FORMATS.items() for ending in entry.endings}
CHOICES = tuple(name for name, entry in FORMATS.items() if entry.endings)  # for --format


def load_format(name: str) -> type[Format]:
    """Import the class that reads files of a format."""
    module, _, kind = FORMATS[name].reader.rpartition(".")
    found: type[Format] = getattr(import_module(f"{__package__}.{module}"), kind)
    return found
