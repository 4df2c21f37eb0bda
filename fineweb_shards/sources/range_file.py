"""Read a file over the network as if it were a local one; ranges can be fetched ahead in the background."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Protocol

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile
from fineweb_shards.system.background import in_background
from fineweb_shards.system.seekable_file import SeekableFile


class Remote(Protocol):
    """A file on the hub or in a bucket. Threads may share it."""

    @property
    def size_bytes(self) -> int: ...

    def fetch(self, start: int, stop: int, /) -> memoryview:
        """Return the bytes of a range, all of them, with retries."""


class Remotes(Protocol):
    """The files of the hub or of buckets that this process reads."""

    def get(self, file: InputFile, address: str | None = None) -> Remote:
        """Return a file. `address` is where another process has found its bytes, if that has to be found."""

    def forget(self, path: str) -> None:
        """Drop a file that will not be read again soon."""


class RangeFile(SeekableFile):
    """A file on the hub or in a bucket. Reads inside a range that is fetched ahead make no request."""

    def __init__(self, remote: Remote, observer: Observer) -> None:
        super().__init__()
        self._remote = remote
        self._observer = observer
        self._ahead: dict[tuple[int, int], Future[memoryview]] = {}

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch a range in the background. It is kept until `forget_before`."""
        if (start, stop) not in self._ahead:
            self._ahead[start, stop] = in_background(lambda: self._remote.fetch(start, stop))

    def forget_before(self, position: int) -> None:
        """Drop ranges that end before `position`."""
        for start, stop in list(self._ahead):
            if stop <= position:
                del self._ahead[start, stop]

    def is_fetched(self, start: int, stop: int) -> bool:
        """Return whether a range is, or is being, fetched ahead."""
        return any(first <= start and stop <= last for first, last in list(self._ahead))

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range, without a copy of those that were fetched ahead."""
        for (first, last), future in list(self._ahead.items()):
            if first <= start and stop <= last:
                return self._wait_for(future)[start - first : stop - first]
        return self._remote.fetch(start, stop)

    def _wait_for(self, future: Future[memoryview]) -> memoryview:
        if not future.done():
            begin = time.monotonic()
            future.exception()  # waits; `result` raises it
            self._observer.add_fetch_wait(time.monotonic() - begin)
        return future.result()

    @property
    def size_bytes(self) -> int:
        return self._remote.size_bytes

    def read(self, length: int = -1) -> memoryview:
        """Read without a copy: pyarrow accepts any object with a buffer."""
        start, size = self._position, self.size_bytes
        stop = size if length is None or length < 0 else min(size, start + length)
        if stop <= start:
            return memoryview(b"")
        self._position = stop
        return self.read_range(start, stop)

    def close(self) -> None:
        self._ahead.clear()
        super().close()
