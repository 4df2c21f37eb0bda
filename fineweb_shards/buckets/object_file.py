"""An object as a file that can be read and searched, with ranges fetched ahead while it is read in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from fineweb_shards.system.background import in_background
from fineweb_shards.system.seekable_file import SeekableFile

_BLOCK_BYTES = 4 * 2**20
_BLOCKS_AHEAD = 4


class ObjectFile(SeekableFile):
    """A file of blocks, each fetched by one range. Holds the current block and those ahead: 20 MiB."""

    def __init__(self, fetch: Callable[[int, int], memoryview], size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._blocks: dict[int, Future[memoryview]] = {}
        self._last = -1  # the block that was read last

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer, says typeshed
        number, begin = divmod(self._position, _BLOCK_BYTES)
        if self._position >= self._size_bytes or not len(buffer):
            return 0
        data = self._block(number)[begin : begin + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _block(self, number: int) -> memoryview:
        """Return a block, and fetch those after it if the file is read in order."""
        in_order = number in (self._last, self._last + 1)
        self._last = number
        last = min(number + _BLOCKS_AHEAD if in_order else number, (self._size_bytes - 1) // _BLOCK_BYTES)
        self._blocks = {
            n: block for n, block in self._blocks.items() if number <= n <= number + _BLOCKS_AHEAD
        }
        for ahead in range(number, last + 1):
            if ahead not in self._blocks:
                begin = ahead * _BLOCK_BYTES
                end = min(begin + _BLOCK_BYTES, self._size_bytes)
                self._blocks[ahead] = in_background(partial(self._fetch, begin, end))
        return self._blocks[number].result()

    def close(self) -> None:
        self._blocks.clear()
        super().close()
