"""Read the bytes of one file by ranges, wherever it is; ranges can be fetched ahead in the background.

One class for every reader: formats ask for ranges, pyarrow for a seekable file, and what is read front to back
(`blocks_ahead`) has the next blocks fetched by itself. Retrying is inside `fetch`, around a single range.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, BinaryIO

from fineweb_shards.system.background import in_background

Fetch = Callable[[int, int], memoryview]  # returns the bytes of a range, all of them
_BLOCK_BYTES = 4 * 2**20
_BLOCKS_AHEAD = 4  # with the current one 20 MiB
_BUFFER_BYTES = 2**17


class ByteSource(io.RawIOBase):
    """A file on the hub or in a bucket. Reads inside a range that is fetched ahead make no request."""

    def __init__(self, fetch: Fetch, size_bytes: int, blocks_ahead: int = 0, block_bytes: int | None = None) -> None:
        super().__init__()
        self._position = 0
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._ahead: dict[tuple[int, int], Future[memoryview]] = {}
        self._blocks_ahead = blocks_ahead
        self._block_bytes = block_bytes or _BLOCK_BYTES
        self._last_block = -1  # the one that was read last

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the file."""
        return self._size_bytes

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch a range in the background. It is kept until `forget_before`."""
        if (start, stop) not in self._ahead:
            self._ahead[start, stop] = in_background(partial(self._fetch, start, stop))

    def forget_before(self, position: int) -> None:
        """Drop ranges that end before `position`."""
        for start, stop in list(self._ahead):
            if stop <= position:
                del self._ahead[start, stop]

    def is_fetched(self, start: int, stop: int) -> bool:
        """Return whether reading a range takes no request that is not under way already."""
        return any(first <= start and stop <= last for first, last in list(self._ahead))

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range, without a copy of those that were fetched ahead."""
        for (first, last), future in list(self._ahead.items()):
            if first <= start and stop <= last:
                return future.result()[start - first : stop - first]
        return self._fetch(start, stop)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end."""
        stop = min(offset + size, self.size_bytes)
        return bytes(self.read_range(offset, stop)) if offset < stop else b""

    def for_arrow(self) -> Any:
        """Return what pyarrow reads the file by."""
        return self

    # As a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self.size_bytes)[whence]
        if position < 0:
            raise ValueError(f"there is no byte {position}")
        self._position = position
        return position

    def read(self, length: int = -1) -> memoryview:
        """Read without a copy: pyarrow accepts any object with a buffer."""
        start, size = self._position, self.size_bytes
        stop = size if length is None or length < 0 else min(size, start + length)
        if stop <= start:
            return memoryview(b"")
        self._position = stop
        return self.read_range(start, stop)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer, says typeshed
        size, start, number = self._block_bytes, self._position, self._position // self._block_bytes
        stop = min(self.size_bytes, start + len(buffer), (number + 1) * size)
        if stop <= start:
            return 0
        # Have the block fetched and, if the file is read in order, those after it; drop all others.
        in_order = number in (self._last_block, self._last_block + 1)
        self._last_block = number
        wanted = range(number, number + 1 + self._blocks_ahead)
        for first, last in list(self._ahead):
            if first // size not in wanted:
                del self._ahead[first, last]
        for begin in [block * size for block in (wanted if in_order else wanted[:1])]:
            if begin < self.size_bytes:
                self.prefetch(begin, min(begin + size, self.size_bytes))
        buffer[: stop - start] = self.read_range(start, stop)
        self._position = stop
        return stop - start

    def readall(self) -> bytes:
        parts, buffer = [], bytearray(self._block_bytes)
        while length := self.readinto(memoryview(buffer)):
            parts.append(bytes(buffer[:length]))
        return b"".join(parts)

    def close(self) -> None:
        self._ahead.clear()
        super().close()


def open_in_order(fetch: Fetch, size_bytes: int, block_bytes: int | None = None) -> BinaryIO:
    """Return a file that can be searched; while it is read in order, a few blocks are fetched ahead, 20 MiB unless
    `block_bytes` says otherwise."""
    source = ByteSource(fetch, size_bytes, blocks_ahead=_BLOCKS_AHEAD, block_bytes=block_bytes)
    return io.BufferedReader(source, _BUFFER_BYTES)  # type: ignore[type-var] # it reads by `readinto` alone
