"""The formats that read files on the hub by range requests.

A batch carries the address at which the parent has found its file, so that workers need not ask the hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import Format, InputFile, ReadSettings
from fineweb_shards.sources.hub.remote_files import RemoteFiles
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.ranged_parquet import RangedParquetFormat
from fineweb_shards.sources.ranged_text import RangedTextFormat
from fineweb_shards.types import Batch


class _OnHub(Format):
    """What formats that read from the hub share. `before` is what was known of the files before."""

    def __init__(
        self, settings: ReadSettings, observer: Observer | None = None, before: RemoteFiles | None = None
    ) -> None:
        self._before = before
        super().__init__(settings, observer)

    def open_remotes(self) -> RemoteFiles:
        assert self.settings.hub is not None
        self._remote_files = RemoteFiles(self.settings.hub, self.retrier, self._before)
        return self._remote_files

    def reopened(self, observer: Observer | None) -> Self:
        """Return the same without open files, but with the addresses that are known."""
        return type(self)(self.settings, observer or self.retrier.observer, self._remote_files)

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        remote = self._remote_files.get(file)
        for batch in super().batches(file, position, starts_mid_document):  # type: ignore[safe-super]
            yield replace(batch, address=remote.address)


class HubParquetFormat(_OnHub, RangedParquetFormat):
    """Parquet files on the hub."""


class HubTextFormat(_OnHub, RangedTextFormat):
    """Text on the hub."""


class HubJsonLinesFormat(_OnHub, RangedTextFormat, JsonLinesFormat):
    """JSON lines on the hub."""
