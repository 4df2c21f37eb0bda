"""Files of the hub that are read from the disk: fetched whole, a few ahead of use, and deleted after use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings
from fineweb_shards.sources.hub.download import PARTIAL_ENDING, download
from fineweb_shards.sources.hub.remote_files import RemoteFiles
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.system.background import in_background
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.retry import Retrier


class Downloads:
    """Fetches files one after the other in the background, in the order in which they are expected."""

    def __init__(self, settings: ReadSettings, retrier: Retrier) -> None:
        assert settings.hub is not None
        self._hub = settings.hub
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

    def wait_for(self, file: InputFile) -> None:
        """Wait until a file is on the disk, and raise what went wrong."""
        self.expect([file])
        self._begun[file.path].result()

    def _download(self, file: InputFile, before: Future[None] | None) -> None:
        if before is not None:
            before.exception()  # waits for its turn
        with self._turn:
            disk = Disk(Path(file.path).parent, self._hub.max_outage_seconds, self._retrier.observer)
            download(file, self._remote_files.get(file), disk, self._retrier)

    def release(self, files: Sequence[InputFile]) -> None:
        """Delete files that will not be read again, unless they are to be kept."""
        if self._hub.keep_downloads:
            return
        for path in {file.path for file in files} - self._released:
            self._released.add(path)
            Path(path).unlink(missing_ok=True)
            Path(path + PARTIAL_ENDING).unlink(missing_ok=True)


class DownloadedFormat(ParquetFormat):
    """`--download`: parquet files of the hub that are read from the disk."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        self._downloads = Downloads(settings, self.retrier)

    def expect(self, files: Sequence[InputFile]) -> None:
        self._downloads.expect(files)

    def open(self, file: InputFile) -> Any:
        self._downloads.wait_for(file)
        return super().open(file)

    def release(self, files: Sequence[InputFile]) -> None:
        self._downloads.release([file for file in files if file.format == "hub-download"])
