"""Decompress gzip and zstd files; of a damaged one, return everything before the damage, then raise an error.

The libraries' own readers lose up to a whole read with the exception. Then the documents that are kept of a
damaged file would depend on the size of the reads; here they depend on the file alone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

# There is no wheel for every platform.
isal_zlib: Any = importlib.import_module("isal.isal_zlib") if importlib.util.find_spec("isal") else None
_PACKED_BYTES = 64 * 1024
_EMPTY = "is empty, which no compressed file is: it was not written to its end"
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # with a gzip header, and its check sum checked


class DamagedStreamError(Exception):
    """The rest of the file can't be decompressed."""


class NotCompressedError(DamagedStreamError):
    """The file is not compressed, although its name says so."""


class TrailingGarbageError(DamagedStreamError):
    """The compressed data is whole, but other bytes follow it."""


class Unpacker(Protocol):
    """Reads the text of a compressed file."""

    def read(self, size: int) -> bytes:
        """Return about `size` bytes, none at the end; DamagedStreamError after all that is readable."""

    def close(self) -> None: ...


# Opens a compressed file, again each time it is called; may raise OSError.
OpenPacked = Callable[[], BinaryIO]


def open_local(path: str, compression: str) -> BinaryIO:
    """Open a compressed file on the disk."""
    if compression == "zstd":
        native: BinaryIO = pa.OSFile(os.fsencode(path))  # any name, UTF-8 or not; read without Python's lock
        return native
    return open(path, "rb")


def open_unpacker(open_packed: OpenPacked, compression: str) -> Unpacker:
    """Begin to decompress a file; may raise OSError."""
    if compression == "zstd":
        return ZstdUnpacker(open_packed)
    return GzipUnpacker(open_packed()) if isal_zlib is None else FastGzipUnpacker(open_packed)


class FastGzipUnpacker:
    """Reads a gzip file with ISA-L, in less than half of zlib's time. Whatever is unusual in a file is left
    to zlib, which reads it again up to there and continues: so a damaged file ends where it ends for zlib."""

    def __init__(self, open_packed: OpenPacked) -> None:
        self._open_packed = open_packed
        self._packed = open_packed()
        self._pending = b""
        self._member = isal_zlib.decompressobj(_GZIP_WINDOW)
        self._position = 0  # in the text
        self._careful: GzipUnpacker | None = None

    def read(self, size: int) -> bytes:
        if self._careful is None:
            try:
                text = self._inflate(size)
            except isal_zlib.error:
                text = None
            if text is not None:
                self._position += len(text)
                return text
            self._careful = self._start_again(size)
        return self._careful.read(size)

    def close(self) -> None:
        self._packed.close()
        if self._careful is not None:
            self._careful.close()

    def _inflate(self, size: int) -> bytes | None:
        """Return some text, none at the end of the file; None if the file is not as it should be."""
        while True:
            if self._member.eof:
                self._pending = self._skip_padding(self._member.unused_data)
                if not self._pending:
                    return b""
                self._member = isal_zlib.decompressobj(_GZIP_WINDOW)
            self._pending = self._pending or self._packed.read(_PACKED_BYTES)
            if not self._pending:
                return None
            text: bytes = self._member.decompress(self._pending, size)
            self._pending = self._member.unconsumed_tail
            if text:
                return text

    def _skip_padding(self, packed: bytes) -> bytes:
        """Return what follows a member, without the zeros in front of it."""
        while not (rest := packed.lstrip(b"\0")) and (packed := self._packed.read(_PACKED_BYTES)):
            pass
        return rest

    def _start_again(self, size: int) -> GzipUnpacker:
        """Return an unpacker that has read the same text with zlib."""
        unpacker = GzipUnpacker(self._open_packed())
        left = self._position
        while left and (text := unpacker.read(min(left, size))):
            left -= len(text)
        return unpacker


class GzipUnpacker:
    """Reads the members of a gzip file one after another. Zeros after a member are padding, as in gzip(1)."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._pending = b""  # read, not yet decompressed
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._failure: DamagedStreamError | None = None

    def read(self, size: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        while self._member is not None or self._find_member():
            if text := self._inflate(size):
                return text
            if self._failure is not None:
                raise self._failure
        return b""

    def close(self) -> None:
        self._packed.close()

    def _find_member(self) -> bool:
        """Begin the next member; False if there is none."""
        while True:
            if self._members:
                self._pending = self._pending.lstrip(b"\0")
            if len(self._pending) >= len(_GZIP_MAGIC):
                break
            more = self._packed.read(_PACKED_BYTES)
            if not more:
                break
            self._pending += more
        if not self._pending and self._members:
            return False
        if not self._pending:
            raise NotCompressedError(_EMPTY)
        if not self._pending.startswith(_GZIP_MAGIC):
            raise (
                TrailingGarbageError("are bytes that are no gzip")
                if self._members
                else NotCompressedError("is no gzip file")
            )
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._members += 1
        return True

    def _inflate(self, size: int) -> bytes:
        """Return some text of the current member; none if it has ended, or if more input is needed first."""
        member = self._member
        assert member is not None
        if not self._pending:
            self._pending = self._packed.read(_PACKED_BYTES)
        at_end = not self._pending
        before = member.copy()
        try:
            text = member.decompress(self._pending, size)
        except zlib.error as error:
            self._failure = DamagedStreamError(_reason(error))
            return _inflate_bytewise(before, self._pending)
        self._pending = member.unconsumed_tail
        if member.eof:
            self._pending, self._member = member.unused_data, None
        elif at_end and not text:
            self._failure = DamagedStreamError("the file ends in the middle of its compressed data")
        return text


def _inflate_bytewise(member: zlib._Decompress, packed: bytes) -> bytes:
    """Return the text before an error, by decompressing byte by byte."""
    text = bytearray()
    try:
        for i in range(len(packed)):
            text += member.decompress(packed[i : i + 1])
    except zlib.error:
        return bytes(text)
    raise AssertionError("what failed in one piece must fail byte by byte")


class ZstdUnpacker:
    """Reads the frames of a zstd file one after another, with pyarrow."""

    def __init__(self, open_packed: OpenPacked) -> None:
        self._open_packed = open_packed
        self._stream = self._open()
        self._position = 0  # in the text
        self._failure: DamagedStreamError | None = None

    def read(self, size: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            text: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            self._failure = DamagedStreamError(_reason(error))
            text = self._read_bytewise(size)
        else:
            if not text and not self._position and self._is_empty():
                self._failure = NotCompressedError(_EMPTY)
        if not text and self._failure is not None:
            raise self._failure
        self._position += len(text)
        return text

    def close(self) -> None:
        self._stream.close()

    def _open(self) -> Any:
        return pa.CompressedInputStream(self._open_packed(), "zstd")

    def _is_empty(self) -> bool:
        with contextlib.closing(self._open_packed()) as packed:
            return not packed.read(1)

    def _read_bytewise(self, size: int) -> bytes:
        """Return the text before an error, by reading the file again, byte by byte at the end."""
        self._stream.close()
        self._stream = self._open()
        text = bytearray()
        try:
            left = self._position
            while left and (part := self._stream.read(min(left, size))):
                left -= len(part)
            while len(text) < size and (part := self._stream.read(1)):
                text += part
        except (OSError, pa.ArrowException):
            return bytes(text)
        return bytes(text)  # this time without an error: the disk had a transient fault


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
