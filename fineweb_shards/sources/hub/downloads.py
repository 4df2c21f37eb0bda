"""`--download`: fetch whole parquet files from the hub, a few ahead of use, and delete them after use."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

from fineweb_shards.errors import ChangedError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import HubRef, InputFile, ReadSettings
from fineweb_shards.sources.hub.errors import translated_errors
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.system.background import in_background
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import output_error


class DownloadedFormat(ParquetFormat):
    """Parquet files that are downloaded with huggingface_hub (by xet, if installed) before they are read."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        open_session(self.retrier)
        self._downloads: dict[str, Future[None]] = {}

    def expect(self, files: Sequence[InputFile]) -> None:
        for file in files:
            if file.path not in self._downloads:
                self._downloads[file.path] = in_background(partial(self._download, file))

    def open(self, file: InputFile) -> Any:
        self.expect([file])  # does nothing if its download has begun
        self._downloads[file.path].result()
        return super().open(file)

    def _download(self, file: InputFile) -> None:
        path = Path(file.path)
        if path.exists() and path.stat().st_size == file.size_bytes:
            return
        hub = self.settings.hub
        assert hub is not None
        disk = Disk(path.parent, hub.max_outage_seconds, self.retrier.observer)
        disk.attempt(lambda: self.retrier.call(partial(self._download_once, file, hub)))
        self.retrier.observer.add_fetched(file.size_bytes)

    def _download_once(self, file: InputFile, hub: HubRef) -> None:
        url = hf_hub_url(hub.dataset, file.name, repo_type="dataset", revision=hub.commit)
        try:
            with translated_errors(file.name):
                now = get_hf_file_metadata(url).etag
                if now != file.content_hash:
                    was = file.content_hash
                    raise ChangedError(f"{file.name}: the file on the hub was {was} and is {now}.")
                hf_hub_download(
                    hub.dataset,
                    file.name,
                    repo_type="dataset",
                    revision=hub.commit,
                    local_dir=hub.download_folder,
                )
        except OSError as error:
            raise output_error(Path(file.path), error) from None

    def release(self, files: Sequence[InputFile]) -> None:
        hub = self.settings.hub
        if hub is None or hub.keep_downloads:
            return
        for file in files:
            if file.format == "hub-download":
                Path(file.path).unlink(missing_ok=True)
