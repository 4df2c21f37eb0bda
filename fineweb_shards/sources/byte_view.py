"""Read bytes by offset from a file, a compressed file or standard input, through one interface.

A file can be read anywhere, so its batches are references. A stream can only be read front to back, so
one process reads it, and its batches carry their bytes. Both have `read_at`, so that the code that finds
document boundaries (text.py, jsonl.py) works for both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO, Protocol

import pyarrow as pa

from fineweb_shards.errors import BadFileError
from fineweb_shards.sources.base import InputFile, read_error
from fineweb_shards.sources.decompression import (
    DamagedStreamError,
    GzipUnpacker,
    NotCompressedError,
    TrailingGarbageError,
    Unpacker,
    open_local,
    open_unpacker,
)
from fineweb_shards.sources.pipes import open_pipe
from fineweb_shards.sources.read_ahead import READ_BYTES, ReadAhead
from fineweb_shards.system.shared_memory import SharedBytes

_SMALL_BYTES = 64 * 1024
_EXPANSION_BYTES = 4 * 2**20


class ByteView(Protocol):
    """Bytes that can be read by offset."""

    @property
    def size_bytes(self) -> int:
        """The length; of a stream, only final once `read_at` has returned fewer bytes than asked for."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end."""

    def close(self) -> None: ...


OpenPackedFile = Callable[[InputFile], BinaryIO]


def open_local_file(file: InputFile) -> BinaryIO:
    """Open a file on the disk that is read front to back."""
    return open_local(file.path, file.compression or "")


class FileView:
    """A plain file. A small one is read once, when its beginning is looked at."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._whole: bytes | None = None
        try:
            self._handle = open(file.path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise read_error(file, error) from error

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._handle.fileno()).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        if self._whole is not None:
            return self._whole[offset : offset + size]
        left, parts = size, []
        try:
            self._handle.seek(offset)
            while left > 0 and (part := self._handle.read(left)):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise read_error(self._file, error) from error
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if offset == 0 and left and len(data) <= _SMALL_BYTES:
            self._whole = data
        return data

    def close(self) -> None:
        self._handle.close()


class StreamView:
    """A stream, read on demand. Keeps the bytes from the offset of the last `forget` on."""

    def __init__(self, file: InputFile, stream: ReadAhead | None = None) -> None:
        self._file = file
        self._stream = stream or open_stream(file)
        self._start = 0  # offset of the first byte kept
        self._kept = bytearray()
        self._ended = False
        self.failure: BadFileError | None = None  # of a damaged stream; what is before it can still be read
        self._is_cut_off = False

    @property
    def size_bytes(self) -> int:
        return self._start + len(self._kept)

    def read_at(self, offset: int, size: int) -> bytes:
        with self._view(offset, size) as view:
            return bytes(view)

    def share_at(self, offset: int, size: int) -> SharedBytes:
        """Return what `read_at` does, as bytes that workers can read."""
        with self._view(offset, size) as view:
            return SharedBytes(view)

    @contextmanager
    def _view(self, offset: int, size: int) -> Iterator[memoryview]:
        """Read as far as needed, and lend a part of what is kept, not copied."""
        if offset < self._start:
            raise ValueError(f"offset {offset} has been forgotten")
        while not self._ended and self._start + len(self._kept) < offset + size:
            try:
                data = self._stream.read()
            except (DamagedStreamError, OSError) as error:
                self._fail(error)
                data = b""
            self._ended = not data
            self._kept += data
        begin = offset - self._start
        with memoryview(self._kept) as kept, kept[begin : begin + size] as part:
            yield part

    def is_cut_off_at(self, offset: int) -> bool:
        """Tell whether damage ends the text at `offset`, so that its last document is not whole."""
        return self._is_cut_off and offset == self.size_bytes

    def _fail(self, error: DamagedStreamError | OSError) -> None:
        text = f"{self.size_bytes:,} bytes of text"
        reason = getattr(error, "strerror", None) or str(error)
        self._is_cut_off = not isinstance(error, TrailingGarbageError)
        if isinstance(error, TrailingGarbageError):
            sentence = f"behind its {text} {reason}"
        elif isinstance(error, NotCompressedError):
            sentence = reason
        else:
            sentence = f"broken after {text}: {reason}"
        self.failure = BadFileError(f"{self._file.path}: {sentence}.")

    def skip_to(self, offset: int) -> None:
        """Read up to `offset` and drop what is before it."""
        while self._start < offset and (data := self.read_at(self._start, READ_BYTES)):
            self.forget(min(self._start + len(data), offset))

    def forget(self, offset: int) -> None:
        """Drop the bytes before `offset`: they will not be read again."""
        del self._kept[: offset - self._start]
        self._start = offset

    def close(self) -> None:
        self._stream.close()


def expansion_of(file: InputFile, open_packed: OpenPackedFile = open_local_file) -> float:
    """Estimate from the beginning of a compressed file how many times larger its text is than the file."""
    if file.compression is None or file.size_bytes == 0:
        return 1.0
    with contextlib.closing(open_packed(file)) as packed:
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


def open_stream(file: InputFile, open_packed: OpenPackedFile = open_local_file) -> ReadAhead:
    """Begin to read a stream."""
    if file.is_pipe:
        return ReadAhead(open_pipe(file.path).read, lambda: None)
    try:
        if file.compression is None:
            plain = open_packed(file)
            return ReadAhead(plain.read, plain.close)
        unpacker = open_unpacker(partial(open_packed, file), file.compression)
    except OSError as error:
        raise read_error(file, error) from error
    return ReadAhead(unpacker.read, unpacker.close)
