"""Read files that can only be read front to back: pipes, compressed files, and CSV over the network.

A thread reads ahead: decompressing a text takes as long as encoding a third of it. The libraries release the GIL while
they decompress, so several files can be unpacked at once, and the thread that lists batches only cuts text that is
ready. The read-ahead is bounded in bytes.

A damaged gzip or zstd file yields everything before the damage, then an error. The libraries' own readers lose up to a
whole read when they raise, so the documents kept of a damaged file would depend on the size of the reads; here they
depend only on the file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import queue
import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from fineweb_shards.storage.local import open_pipe
from fineweb_shards.storage.place import InputFile, Place, read_error

# Optional: not every platform has a wheel.
isal_zlib: Any = importlib.import_module("isal.isal_zlib") if importlib.util.find_spec("isal") else None
READ_BYTES = 2**20
_BLOCKS_AHEAD = 8
_EXPANSION_BYTES = 4 * 2**20
_PACKED_BYTES = 64 * 1024
_EMPTY = "is empty, which no compressed file is: it was not written to its end"
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # with a gzip header, and its checksum verified


class ReadAhead:
    """Calls `read` in a thread until it returns nothing or raises an error, which `ReadAhead.read` raises again."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None]) -> None:
        self._read = read
        self._close = close
        self._blocks: queue.Queue[bytes | BaseException] = queue.Queue(_BLOCKS_AHEAD)
        self._last: bytes | BaseException | None = None  # the end, or an error
        self._closed = threading.Event()
        # A daemon, because reading standard input may block for ever.
        threading.Thread(target=self._run, name="read ahead", daemon=True).start()

    def read(self) -> bytes:
        """Return the next block; empty at the end."""
        block = self._blocks.get() if self._last is None else self._last
        if not block or isinstance(block, BaseException):
            self._last = block
        if isinstance(block, BaseException):
            raise block
        return block

    def close(self) -> None:
        """Make the thread stop at its next block and close the stream."""
        self._closed.set()
        while not self._blocks.empty():
            self._blocks.get_nowait()

    def _run(self) -> None:
        block: bytes | BaseException = b"-"
        while block and not isinstance(block, BaseException) and not self._closed.is_set():
            try:
                block = self._read(READ_BYTES)
            except BaseException as error:  # raised again by `read`
                block = error
            self._blocks.put(block)
        self._close()


def open_stream(file: InputFile, place: Place) -> ReadAhead:
    """Open a file for reading front to back, decompressed."""
    if file.is_pipe:
        return ReadAhead(open_pipe(file.path).read, lambda: None)
    try:
        if file.compression is None:
            plain = place.stream(file)
            return ReadAhead(plain.read, plain.close)
        open_packed = partial(place.stream, file)
        if file.compression == "zstd":
            unpacker: Unpacker = ZstdUnpacker(open_packed)
        else:
            unpacker = GzipUnpacker(open_packed()) if isal_zlib is None else FastGzipUnpacker(open_packed)
    except OSError as error:
        raise read_error(file, error) from error
    return ReadAhead(unpacker.read, unpacker.close)


def expansion_of(file: InputFile, place: Place) -> float:
    """Estimate from the beginning of a compressed file how many times larger its text is."""
    if file.compression is None or file.size_bytes == 0:
        return 1.0
    with contextlib.closing(place.stream(file)) as packed:
        is_gzip = file.compression == "gzip"
        stream: Any = GzipUnpacker(packed) if is_gzip else pa.CompressedInputStream(packed, "zstd")
        try:
            text_bytes = 0
            while text_bytes < _EXPANSION_BYTES and (text := stream.read(READ_BYTES)):
                text_bytes += len(text)
        except (DamagedStreamError, OSError, pa.ArrowException):
            return 1.0  # the damage is reported when the file is read
        return text_bytes / max(1, packed.tell())


# Decompressing


class DamagedStreamError(Exception):
    """The rest of the file can't be decompressed."""


class NotCompressedError(DamagedStreamError):
    """The file is not compressed, although its name says so."""


class TrailingGarbageError(DamagedStreamError):
    """The compressed data is whole, but other bytes follow it."""


# `read(size)` returns about `size` bytes of text, none at the end; after all readable text, DamagedStreamError.
Unpacker: TypeAlias = "FastGzipUnpacker | GzipUnpacker | ZstdUnpacker"
OpenPacked = Callable[[], BinaryIO]  # opens the compressed file anew with each call; may raise OSError


class FastGzipUnpacker:
    """Reads a gzip file with ISA-L, in less than half of zlib's time. At the first error zlib takes over and reads the
    file again, so that a damaged file ends where it ends for zlib."""

    def __init__(self, open_packed: OpenPacked) -> None:
        self._open_packed = open_packed
        self._unpacker = GzipUnpacker(open_packed(), isal_zlib)
        self._is_careful = False
        self._position = 0  # in the text

    def read(self, size: int) -> bytes:
        try:
            text = self._unpacker.read(size)
        except DamagedStreamError:
            if self._is_careful:
                raise
            self._is_careful = True
            self.close()
            self._unpacker = GzipUnpacker(self._open_packed())
            _skip(self._unpacker, self._position, size)
            text = self._unpacker.read(size)
        self._position += len(text)
        return text

    def close(self) -> None:
        self._unpacker.close()


class GzipUnpacker:
    """Reads a gzip file member by member. Zeros after a member are padding, as in gzip(1). Only zlib returns the text
    before an error."""

    def __init__(self, packed: BinaryIO, library: Any = zlib) -> None:
        self._packed = packed
        self._library = library
        self._pending = b""  # read, not yet decompressed
        self._member: Any = None
        self._members = 0
        self._failure: DamagedStreamError | None = None

    def read(self, size: int) -> bytes:
        while self._failure is None:
            if self._member is None and not self._find_member():
                return b""
            if text := self._inflate(size):
                return text
        raise self._failure

    def close(self) -> None:
        self._packed.close()

    def _find_member(self) -> bool:
        """Begin the next member; False if there is none."""
        while True:
            if self._members:
                self._pending = self._pending.lstrip(b"\0")
            if len(self._pending) >= len(_GZIP_MAGIC) or not (more := self._packed.read(_PACKED_BYTES)):
                break
            self._pending += more
        if not self._pending and self._members:
            return False
        if not self._pending:
            raise NotCompressedError(_EMPTY)
        if not self._pending.startswith(_GZIP_MAGIC):
            if self._members:
                raise TrailingGarbageError("follow bytes that are not gzip")
            raise NotCompressedError("is not a gzip file")
        self._member = self._library.decompressobj(_GZIP_WINDOW)
        self._members += 1
        return True

    def _inflate(self, size: int) -> bytes:
        """Return some text of the current member; none if it has ended, or needs more input."""
        member = self._member
        self._pending = self._pending or self._packed.read(_PACKED_BYTES)
        at_end = not self._pending
        before = member.copy() if self._library is zlib else None
        try:
            text: bytes = member.decompress(self._pending, size)
        except self._library.error as error:
            self._failure = DamagedStreamError(_reason(error))
            if before is None:
                return b""
            # Byte by byte, to get all text before the error.
            readable = bytearray()
            with contextlib.suppress(zlib.error):
                for i in range(len(self._pending)):
                    readable += before.decompress(self._pending[i : i + 1])
                raise AssertionError("what failed in one piece must fail byte by byte") from None
            return bytes(readable)
        self._pending = member.unconsumed_tail
        if member.eof:
            self._pending, self._member = member.unused_data, None
        elif at_end and not text:
            self._failure = DamagedStreamError("the file ends in the middle of its compressed data")
        return text


class ZstdUnpacker:
    def __init__(self, open_packed: OpenPacked) -> None:
        self._open_packed = open_packed
        self._stream: Any = pa.CompressedInputStream(open_packed(), "zstd")
        self._position = 0  # in the text
        self._failure: DamagedStreamError | None = None

    def read(self, size: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            text: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            self._failure = DamagedStreamError(_reason(error))
            # Read the file again, byte by byte at the end, to get all text before the error. After a transient fault
            # of the disk there may be no error this time.
            self._stream.close()
            self._stream = pa.CompressedInputStream(self._open_packed(), "zstd")
            readable = bytearray()
            with contextlib.suppress(OSError, pa.ArrowException):
                _skip(self._stream, self._position, size)
                while len(readable) < size and (part := self._stream.read(1)):
                    readable += part
            text = bytes(readable)
        else:
            if not text and not self._position:
                with contextlib.closing(self._open_packed()) as packed:
                    self._failure = None if packed.read(1) else NotCompressedError(_EMPTY)
        if not text and self._failure is not None:
            raise self._failure
        self._position += len(text)
        return text

    def close(self) -> None:
        self._stream.close()


def _skip(stream: Unpacker, text_bytes: int, size: int) -> None:
    """Read up to the position of another reader, at most `size` bytes at a time."""
    while text_bytes and (text := stream.read(min(text_bytes, size))):
        text_bytes -= len(text)


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
