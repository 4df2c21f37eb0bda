"""Files of the hub that are read from the disk: fetched whole, a few ahead of use, and deleted after use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import Format, InputFile, ReadSettings
from fineweb_shards.sources.delimited import CsvFormat, TsvFormat
from fineweb_shards.sources.hub.download import PARTIAL_ENDING, download
from fineweb_shards.sources.hub.remote_files import RemoteFiles
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.sources.text import TextFormat
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Disk, Retrier


class Downloads:
    """Fetches files one after the other in the background, in the order in which they are expected."""

    def __init__(self, settings: ReadSettings, retrier: Retrier) -> None:
        assert settings.hub is not None
        self._hub = settings.hub
        self._max_outage_seconds = settings.max_outage_seconds
        self._retrier = retrier
        self._remote_files = RemoteFiles(settings.hub, retrier)
        self._begun: dict[str, Future[None]] = {}
        self._turn = threading.Lock()  # one at a time, so that the first is there soonest
        self._released: set[str] = set()

    def expect(self, files: Sequence[InputFile]) -> None:
        """Begin to fetch files, if that has not begun."""
        before: Future[None] | None = None
        for file in files:
            if file.path not in self._begun:
                self._begun[file.path] = in_background(partial(self._download, file, before))
            before = self._begun[file.path]

    def has(self, file: InputFile) -> bool:
        """Return whether a file is on the disk."""
        begun = self._begun.get(file.path)
        return begun is not None and begun.done() and begun.exception() is None

    def wait_for(self, file: InputFile) -> None:
        """Wait until a file is on the disk, and raise what went wrong."""
        self.expect([file])
        self._begun[file.path].result()

    def _download(self, file: InputFile, before: Future[None] | None) -> None:
        if before is not None:
            before.exception()  # waits for its turn
        with self._turn:
            if file.path in self._released:  # the run has ended before it came to this file
                return
            disk = Disk(Path(file.path).parent, self._max_outage_seconds, self._retrier.observer)
            download(file, self._remote_files.get(file), disk, self._retrier)

    def release(self, files: Sequence[InputFile]) -> None:
        """Delete files that will not be read again, unless they are to be kept."""
        if self._hub.keep_downloads:
            return
        for path in {file.path for file in files} - self._released:
            self._released.add(path)
            Path(path).unlink(missing_ok=True)
            Path(path + PARTIAL_ENDING).unlink(missing_ok=True)


class DownloadedFormat(Format):
    """Files of the hub that are read from the disk; the classes below say what is in them."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        self._downloads = Downloads(settings, self.retrier)

    def expect(self, files: Sequence[InputFile]) -> None:
        ours = [file for file in files if file.format == files[0].format]
        self._downloads.expect(ours)
        super().expect([file for file in ours if self._downloads.has(file)])

    def make_ready(self, file: InputFile) -> None:
        self._downloads.wait_for(file)

    def release(self, files: Sequence[InputFile]) -> None:
        self._downloads.release([file for file in files if file.format.startswith("download-")])


class DownloadedParquet(DownloadedFormat, ParquetFormat):
    """`--download`: parquet files of the hub."""


class DownloadedJsonLines(DownloadedFormat, JsonLinesFormat):
    """JSON lines of the hub, most of them compressed."""


class DownloadedCsv(DownloadedFormat, CsvFormat):
    """CSV of the hub: where records end is known only by reading all of it."""


class DownloadedTsv(DownloadedFormat, TsvFormat):
    """TSV of the hub."""


class DownloadedText(DownloadedFormat, TextFormat):
    """Text of the hub, most of it compressed."""
