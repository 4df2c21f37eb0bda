"""Read standard input and named pipes, which can be read only once, front to back.

A shell's `<(…)` is a pipe, too. The beginning is read ahead, for its hash: on a resume only that can show
whether the input is the same stream again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache

from fineweb_shards.errors import InputError
from fineweb_shards.sources.base import STANDARD_INPUT
from fineweb_shards.sources.read_ahead import READ_BYTES

_HEAD_BYTES = 64 * 1024


class Pipe:
    """A pipe whose beginning, `head`, was read ahead; `read` returns it once more."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = _open(path)
        self._ended = False
        self.head = b""
        while len(self.head) < _HEAD_BYTES and (data := self._read(_HEAD_BYTES - len(self.head))):
            self.head += data
        self._unread = self.head

    def read(self, size: int) -> bytes:
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        return self._read(size)

    def _read(self, size: int) -> bytes:
        if self._ended:
            return b""
        try:
            data = os.read(self._descriptor, size)
            if not data:
                self._ended = True
                if self._descriptor != 0:
                    os.close(self._descriptor)
            return data
        except OSError as error:  # not a BadFileError, which could be skipped: it may succeed the next time
            raise InputError(f"--input {self._path}: {error.strerror}.", "Run it again.") from error


@cache
def open_pipe(path: str) -> Pipe:
    """Return this process's only pipe of that name: a second one would miss what was already read."""
    return Pipe(path)


def _open(path: str) -> int:
    if path != STANDARD_INPUT:
        try:
            return _enlarge(os.open(path, os.O_RDONLY))  # blocks until another process writes to it
        except OSError as error:
            raise InputError(f"--input {path}: {error.strerror}.", "Check its permissions.") from error
    if sys.stdin is None:  # Python was started with standard input closed
        raise InputError(
            "--input -: standard input is closed.", "Send it something: … | fineweb-shards build --input - …"
        )
    return _enlarge(0)


def _enlarge(descriptor: int) -> int:
    """Let a pipe hold a whole block: with its usual 64 kB the two sides would wait for each other all the
    time."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not Linux, not allowed, or no pipe
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, READ_BYTES)
    return descriptor
