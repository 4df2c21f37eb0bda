"""Where documents come from. `open_source` is the way in; see base.py for what a source is."""

from __future__ import annotations

from importlib import import_module

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import Format, InputFile, ReadSettings, Source

# By name of module and class, so that a run over local files never loads the clients of the hub.
FORMATS = {
    "parquet": "parquet.ParquetFormat",
    "jsonl": "jsonl.JsonLinesFormat",
    "text": "text.TextFormat",
    "hub-parquet": "hub.parquet.HubParquetFormat",
    "hub-download": "hub.parquet.DownloadedFormat",
    "hub-rows": "hub.rows.HubRowsFormat",
}


def open_source(
    files: tuple[InputFile, ...], settings: ReadSettings, observer: Observer | None = None
) -> Source:
    """The source made of these files. `observer` is told that the network is waited for."""
    formats = {file.format: _load_format(file.format)(settings, observer) for file in files}
    return Source(files, formats, settings)


def _load_format(name: str) -> type[Format]:
    module, _, kind = FORMATS[name].rpartition(".")
    found: type[Format] = getattr(import_module(f"{__package__}.{module}"), kind)
    return found
