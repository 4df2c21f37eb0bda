"""Files and pipes on this machine.

Standard input and named pipes (such as a shell's `<(…)`) can be read only once, front to back. Their beginning is read
ahead and hashed: on a resume only that hash shows whether the input is the same stream.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, BinaryIO

from fineweb_shards.errors import InputError
from fineweb_shards.storage.place import STANDARD_INPUT, ByteSource, InputFile, Place, read_error

_HEAD_BYTES = 64 * 1024
END_MARK = b"\0"  # never occurs in JSON
_HELD_BYTES = 2**20


class LocalPlace(Place):
    """The disk. No prefetching: the kernel reads ahead, and caches."""

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        return LocalSource(file)

    def stream(self, file: InputFile) -> BinaryIO:
        if file.compression == "zstd":
            import pyarrow as pa  # here, as below: it takes 28 MB, and not every process needs it

            native: BinaryIO = pa.OSFile(os.fsencode(file.path))  # reads without the GIL
            return native
        return open(file.path, "rb")


class ScratchPlace(LocalPlace):
    """Files of this run, which are read once."""

    def release(self, files: Sequence[InputFile]) -> None:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.path)


class LocalSource(ByteSource):
    """A file on the disk, whose size may have changed since it was found."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        try:
            self._handle = open(file.path, "rb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise read_error(file, error) from error
        super().__init__(lambda start, stop: memoryview(self.read_at(start, stop - start)), file.size_bytes)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._handle.fileno()).st_size

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing: the kernel reads ahead."""

    def is_fetched(self, start: int, stop: int) -> bool:
        return True

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            self._handle.seek(offset)
            return self._handle.read(size)
        except OSError as error:
            raise read_error(self._file, error) from error

    def for_arrow(self) -> Any:
        import pyarrow as pa

        try:
            return pa.OSFile(os.fsencode(self._file.path))  # as bytes: a name need not be UTF-8
        except OSError as error:
            raise read_error(self._file, error) from error

    def close(self) -> None:
        self._handle.close()
        super().close()


class Pipe:
    """A pipe whose beginning, `head`, was read ahead; `read` returns it again.

    With `has_end_mark`, standard input comes from the library (api/process.py) and ends with END_MARK. A missing mark
    means that the writing process was killed and the input is incomplete.
    """

    has_end_mark = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = 0
        if path != STANDARD_INPUT:
            try:
                self._descriptor = os.open(path, os.O_RDONLY)  # blocks until another process writes to it
            except OSError as error:
                raise InputError(f"--input {path}: {error.strerror}.", "Check its permissions.") from error
        elif sys.stdin is None:  # Python was started with standard input closed
            hint = "Send it something: … | fineweb-shards build --input - …"
            raise InputError("--input -: standard input is closed.", hint)
        # Room for a whole block: with the usual 64 kB reader and writer would constantly wait for each other.
        with contextlib.suppress(ImportError, AttributeError, OSError):  # not Linux, not permitted, or not a pipe
            import fcntl

            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _HELD_BYTES)
        self._ended = False
        self.head = b""
        while len(self.head) < _HEAD_BYTES and (data := self._read(_HEAD_BYTES - len(self.head))):
            self.head += data
        self._unread = self.head

    def read(self, size: int) -> bytes:
        data, self._unread = self._unread, b""
        return data or self._read(size)

    def _read(self, size: int) -> bytes:
        if self._ended:
            return b""
        try:
            data = os.read(self._descriptor, size)
        except OSError as error:  # not a BadFileError, which could be skipped: the next attempt may succeed
            raise InputError(f"--input {self._path}: {error.strerror}.", "Run it again.") from error
        if self.has_end_mark and self._descriptor == 0:
            if not data:
                raise InputError("The process that sends the documents ended before their end.", "Run it again.")
            self._ended = data.endswith(END_MARK)
            return data.removesuffix(END_MARK)
        self._ended = not data
        if self._ended and self._descriptor != 0:
            os.close(self._descriptor)
        return data


@cache
def open_pipe(path: str) -> Pipe:
    """Return this process's only pipe of that name: a second one would miss what the first has read."""
    return Pipe(path)
