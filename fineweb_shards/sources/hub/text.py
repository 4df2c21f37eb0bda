"""Read uncompressed text and JSON lines on the hub by ranges of bytes, as from a local file.

The parent looks at a little window at the end of every batch, to find where documents end; these windows are
fetched several ahead. The workers fetch their batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings
from fineweb_shards.sources.hub.range_file import RangeFile
from fineweb_shards.sources.hub.remote_files import RemoteFiles
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.text import TextFormat
from fineweb_shards.types import Batch

_WINDOWS_AHEAD = 8
_LARGEST_WINDOW_BYTES = 128 * 1024
_NEAR_BYTES = 256  # a window begins at most so far before the multiple of the batch size that it is about


class RemoteView:
    """The bytes of a file on the hub, by offset. Windows at multiples of `batch_bytes` are fetched ahead."""

    def __init__(self, content: RangeFile, size_bytes: int, batch_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._content = content
        self._batch_bytes = batch_bytes

    def read_at(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.size_bytes)
        if stop <= offset:
            return b""
        if size <= _LARGEST_WINDOW_BYTES and offset > 0 and -offset % self._batch_bytes <= _NEAR_BYTES:
            self._fetch_ahead(offset, size)
        return bytes(self._content.read_range(offset, stop))

    def _fetch_ahead(self, offset: int, size: int) -> None:
        self._content.forget_before(offset)
        for number in range(_WINDOWS_AHEAD):
            start = offset + number * self._batch_bytes
            if start < self.size_bytes:
                self._content.prefetch(start, min(start + size, self.size_bytes))

    def close(self) -> None:
        self._content.close()


class HubTextFormat(TextFormat):
    """Text on the hub, read by range requests."""

    def __init__(
        self, settings: ReadSettings, observer: Observer | None = None, before: RemoteFiles | None = None
    ) -> None:
        super().__init__(settings, observer)
        assert settings.hub is not None
        self._remote_files = RemoteFiles(settings.hub, self.retrier, before)
        self._contents: dict[str, RangeFile] = {}  # by path: files of which batches are being fetched
        self._waiting: dict[str, int] = {}  # by path: how many of those will still be read
        self._lock = threading.Lock()  # one thread receives orders, another one reads

    def reopened(self, observer: Observer | None) -> HubTextFormat:
        """Return the same without open files, but with the addresses that are known."""
        return type(self)(self.settings, observer or self.retrier.observer, self._remote_files)

    def open_stream_view(self, file: InputFile) -> RemoteView:
        content = RangeFile(self._remote_files.get(file), self.retrier.observer)
        return RemoteView(content, file.size_bytes, self.settings.batch_bytes)

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        remote = self._remote_files.get(file)
        for batch in super().batches(file, position, starts_mid_document):
            yield replace(batch, address=remote.address)

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        with self._lock:
            if file.path not in self._contents:
                remote = self._remote_files.get(file, batch.address)
                self._contents[file.path] = RangeFile(remote, self.retrier.observer)
            self._waiting[file.path] = self._waiting.get(file.path, 0) + 1
            content = self._contents[file.path]
        content.prefetch(batch.position, batch.end)

    def read_range(self, file: InputFile, batch: Batch) -> bytes:
        if batch.payload is not None:
            return batch.payload.read()
        with self._lock:
            content = self._contents.get(file.path)
        if content is None:  # nobody has asked for it ahead of time
            remote = self._remote_files.get(file, batch.address)
            return bytes(remote.fetch(batch.position, batch.end))
        data = bytes(content.read_range(batch.position, batch.end))
        content.forget_before(batch.end)
        with self._lock:
            self._waiting[file.path] -= 1
            if not self._waiting[file.path]:
                del self._waiting[file.path], self._contents[file.path]
                content.close()
        return data


class HubJsonLinesFormat(HubTextFormat, JsonLinesFormat):
    """JSON lines on the hub, read by range requests."""
