"""Read text by offset, from a file that can be read anywhere or from a stream, through one interface.

The batches of a file that can be read anywhere are references. A stream can only be read front to back, so
one process reads it, and its batches carry their bytes. Both have `read_at`, so that the code that finds
where documents end (text.py, jsonl.py, csv.py) works for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from fineweb_shards.errors import BadFileError
from fineweb_shards.storage.byte_source import ByteSource
from fineweb_shards.storage.place import InputFile
from fineweb_shards.storage.streams import (
    READ_BYTES,
    DamagedStreamError,
    NotCompressedError,
    ReadAhead,
    TrailingGarbageError,
)
from fineweb_shards.system.shared_memory import SharedBytes

_MOST_WINDOWS_AHEAD = 8
_LARGEST_HEAD_BYTES = 2**20
_LARGEST_WINDOW_BYTES = 128 * 1024
_NEAR_BYTES = 256  # a window begins at most so far before the multiple of the batch size that it is about


class ByteView(Protocol):
    """Bytes that can be read by offset."""

    @property
    def size_bytes(self) -> int:
        """The length; of a stream, only final once `read_at` has returned fewer bytes than asked for."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end."""

    def close(self) -> None: ...


class RangeView:
    """A file that can be read anywhere.

    To find where documents end, the parent looks at a little window at the end of every batch, at multiples
    of `batch_bytes`. These are fetched ahead, the more of them the more were read; the beginning, which is
    looked at several times, is kept.
    """

    def __init__(self, source: ByteSource, batch_bytes: int) -> None:
        self._source = source
        self._batch_bytes = batch_bytes
        self._head = b""
        self._is_whole = False  # the head is all of the file
        self._ahead = 1

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    def read_at(self, offset: int, size: int) -> bytes:
        if offset == 0 and len(self._head) < size <= _LARGEST_HEAD_BYTES and not self._is_whole:
            self._head += self._source.read_at(len(self._head), size - len(self._head))
            self._is_whole = len(self._head) < size
        if self._is_whole or offset + size <= len(self._head):
            return self._head[offset : offset + size]
        if size <= _LARGEST_WINDOW_BYTES and offset > 0 and -offset % self._batch_bytes <= _NEAR_BYTES:
            self._fetch_ahead(offset, size)
        return self._source.read_at(offset, size)

    def _fetch_ahead(self, offset: int, size: int) -> None:
        self._source.forget_before(offset)
        last = self.size_bytes
        for start in range(offset, min(last, offset + self._ahead * self._batch_bytes), self._batch_bytes):
            self._source.prefetch(start, min(start + size, last))
        self._ahead = min(2 * self._ahead, _MOST_WINDOWS_AHEAD)

    def close(self) -> None:
        self._source.close()


class StreamView:
    """A stream, read on demand. Keeps the bytes from the offset of the last `forget` on."""

    def __init__(self, file: InputFile, stream: ReadAhead) -> None:
        self._file = file
        self._stream = stream
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
            sentence = f"after its {text} {reason}"
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
