"""Read uncompressed text and JSON lines on the hub or in a bucket by ranges of bytes, as from a local file.

The parent looks at a little window at the end of every batch, to find where documents end; these windows are
fetched several ahead. The workers fetch their batches.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings
from fineweb_shards.sources.byte_view import ByteView
from fineweb_shards.sources.range_file import RangeFile, Remotes
from fineweb_shards.sources.text import TextFormat
from fineweb_shards.types import Batch

_MOST_WINDOWS_AHEAD = 8
_LARGEST_HEAD_BYTES = 2**20
_LARGEST_WINDOW_BYTES = 128 * 1024
_NEAR_BYTES = 256  # a window begins at most so far before the multiple of the batch size that it is about


class RemoteView:
    """The bytes of a file, by offset. Windows at multiples of `batch_bytes` are fetched ahead, the more
    of them the more were read; the beginning, which is looked at several times, is kept."""

    def __init__(self, content: RangeFile, size_bytes: int, batch_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._content = content
        self._batch_bytes = batch_bytes
        self._head = b""
        self._ahead = 1

    def read_at(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.size_bytes)
        if stop <= offset:
            return b""
        if offset == 0 and len(self._head) < stop <= _LARGEST_HEAD_BYTES:
            self._head += self._content.read_range(len(self._head), stop)
        if stop <= len(self._head):
            return self._head[offset:stop]
        if size <= _LARGEST_WINDOW_BYTES and offset > 0 and -offset % self._batch_bytes <= _NEAR_BYTES:
            self._fetch_ahead(offset, size)
        return bytes(self._content.read_range(offset, stop))

    def _fetch_ahead(self, offset: int, size: int) -> None:
        self._content.forget_before(offset)
        for number in range(self._ahead):
            start = offset + number * self._batch_bytes
            if start < self.size_bytes:
                self._content.prefetch(start, min(start + size, self.size_bytes))
        self._ahead = min(2 * self._ahead, _MOST_WINDOWS_AHEAD)

    def close(self) -> None:
        self._content.close()


class RangedTextFormat(TextFormat):
    """Text that is read by range requests. A subclass says where it is."""

    is_remote = True

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        self.remotes = self.open_remotes()
        self._contents: dict[str, RangeFile] = {}  # by path: files of which batches are being fetched
        self._waiting: dict[str, int] = {}  # by path: how many of those will still be read
        self._lock = threading.Lock()  # one thread receives orders, another one reads

    @abstractmethod
    def open_remotes(self) -> Remotes:
        """Return what fetches the files."""

    def open_stream_view(self, file: InputFile) -> ByteView:
        if file.by_value:
            return super().open_stream_view(file)
        content = RangeFile(self.remotes.get(file), self.retrier.observer)
        return RemoteView(content, file.size_bytes, self.settings.batch_bytes)

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        smaller = self.reopened(None)
        smaller.settings = replace(self.settings, batch_bytes=min(self.settings.batch_bytes, limit_bytes))
        return smaller.batches(file, position, False)

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        with self._lock:
            if file.path not in self._contents:
                remote = self.remotes.get(file, batch.address)
                self._contents[file.path] = RangeFile(remote, self.retrier.observer)
            self._waiting[file.path] = self._waiting.get(file.path, 0) + 1
            content = self._contents[file.path]
        content.prefetch(batch.position, batch.end)

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        self.prefetch(file, batch)  # what was fetched is dropped when it is read

    def read_range(self, file: InputFile, batch: Batch) -> bytes:
        if batch.payload is not None:
            return batch.payload.read()
        with self._lock:
            content = self._contents.get(file.path)
        if content is None:  # nobody has asked for it ahead of time
            remote = self.remotes.get(file, batch.address)
            return bytes(remote.fetch(batch.position, batch.end))
        data = bytes(content.read_range(batch.position, batch.end))
        content.forget_before(batch.end)
        with self._lock:
            self._waiting[file.path] -= 1
            if not self._waiting[file.path]:
                del self._waiting[file.path], self._contents[file.path]
                content.close()
        return data
