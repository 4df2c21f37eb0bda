"""Read a stream ahead in a thread: decompressing takes as long as a worker's encoding of a third of the text.

The libraries release Python's lock while they decompress, so that several files can be unpacked at once, and
the thread that lists batches only cuts what is ready. What is ahead is bounded in bytes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

READ_BYTES = 2**20
_BLOCKS_AHEAD = 8


class ReadAhead:
    """Reads blocks with `read` until it returns none, or raises an error, which is then raised here."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None]) -> None:
        self._read = read
        self._close = close
        self._blocks: queue.Queue[bytes | BaseException] = queue.Queue(_BLOCKS_AHEAD)
        self._last: bytes | BaseException | None = None  # the end, or an error: nothing else comes after it
        self._closed = threading.Event()
        # A daemon, because it may be blocked for ever in a read of standard input.
        threading.Thread(target=self._run, name="read ahead", daemon=True).start()

    def read(self) -> bytes:
        """Return the next block; none at the end."""
        block = self._blocks.get() if self._last is None else self._last
        if not block or isinstance(block, BaseException):
            self._last = block
        if isinstance(block, BaseException):
            raise block
        return block

    def close(self) -> None:
        """Make the thread end at its next block. It closes the stream."""
        self._closed.set()
        while not self._blocks.empty():
            self._blocks.get_nowait()

    def _run(self) -> None:
        block: bytes | BaseException = b"-"
        while block and not isinstance(block, BaseException) and not self._closed.is_set():
            try:
                block = self._read(READ_BYTES)
            except BaseException as error:  # raised again where the stream is read
                block = error
            self._blocks.put(block)
        self._close()
