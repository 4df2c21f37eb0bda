"""Read files that can only be read front to back: pipes, compressed files, and CSV over the network.

A thread reads ahead: decompressing takes as long as a worker's encoding of a third of the text. The
libraries release Python's lock while they decompress, so that several files can be unpacked at once, and
the thread that lists batches only cuts what is ready. What is ahead is bounded in bytes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from fineweb_shards.storage.decompression import DamagedStreamError, GzipUnpacker, Unpacker, open_unpacker
from fineweb_shards.storage.local import open_pipe
from fineweb_shards.storage.place import InputFile, Place, read_error

READ_BYTES = 2**20
_BLOCKS_AHEAD = 8
_EXPANSION_BYTES = 4 * 2**20


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


def open_stream(file: InputFile, place: Place) -> ReadAhead:
    """Begin to read a stream."""
    if file.is_pipe:
        return ReadAhead(open_pipe(file.path).read, lambda: None)
    try:
        if file.compression is None:
            plain = place.stream(file)
            return ReadAhead(plain.read, plain.close)
        unpacker = open_unpacker(partial(place.stream, file), file.compression)
    except OSError as error:
        raise read_error(file, error) from error
    return ReadAhead(unpacker.read, unpacker.close)


def expansion_of(file: InputFile, place: Place) -> float:
    """Estimate from the beginning of a compressed file how many times larger its text is than the file."""
    if file.compression is None or file.size_bytes == 0:
        return 1.0
    with contextlib.closing(place.stream(file)) as packed:
        stream: Unpacker | pa.NativeFile = (
            GzipUnpacker(packed) if file.compression == "gzip" else pa.CompressedInputStream(packed, "zstd")
        )
        try:
            text_bytes = 0
            while text_bytes < _EXPANSION_BYTES and (text := stream.read(READ_BYTES)):
                text_bytes += len(text)
        except (DamagedStreamError, OSError, pa.ArrowException):
            return 1.0  # the damage is reported when the file is read
        return text_bytes / max(1, packed.tell())
