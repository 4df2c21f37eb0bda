"""Where documents come from. `open_source` is the way in; see base.py for what a source is."""

from __future__ import annotations

from fineweb_shards.sources.base import Format, InputFile, ReadSettings, Source
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.sources.text import TextFormat

FORMATS: dict[str, type[Format]] = {
    "parquet": ParquetFormat,
    "jsonl": JsonLinesFormat,
    "text": TextFormat,
}


def open_source(files: tuple[InputFile, ...], settings: ReadSettings) -> Source:
    """The source made of these files."""
    return Source(files, {name: kind(settings) for name, kind in FORMATS.items()}, settings)
