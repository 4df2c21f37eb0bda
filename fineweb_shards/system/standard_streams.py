"""Standard streams that are safe to write to, even if closed, full, broken or without Unicode.

A failed write must not end a build: output that a full disk, a closed pipe or a closed terminal refuses is dropped.
Only subcommands that just print end with an error, or with exit code 141 if the reader has closed the pipe, like any
program in a pipe.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from fineweb_shards.errors import OutputError, ReaderGone

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PIECE_BYTES = 4096  # a writable pipe takes this many without blocking (PIPE_BUF)
_ESCAPE = "fineweb_shards.escape"
# Characters of our messages, and their replacements where the encoding lacks them. One for one, because progress bars
# count their width in characters.
_PLAIN = {"…": ".", "·": ".", "–": "-", "—": "-"}


class Sink(io.RawIOBase):
    """A raw stream over a file descriptor, without locks, so that a signal handler can always write. `strict`: a failed
    write is an error; otherwise the data is dropped."""

    def __init__(self, descriptor: int, *, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.silent = False  # drop everything
        self.longest_wait_seconds: float | None = None  # for a slow reader; None: no limit
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data` or drop the rest; always report everything as written."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and not self.silent:
                # Wait for the reader here, not in `os.write`, which a signal handler could not leave.
                if not select.select([], [self._descriptor], [], self.longest_wait_seconds)[1]:
                    break
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._descriptor, view[:_PIECE_BYTES]) :]
        except OSError as error:
            if self.strict:
                self.silent = True  # so that the flush at exit does not raise again
                if isinstance(error, BrokenPipeError):
                    raise ReaderGone("") from None
                message = f"standard output can't be written: {error.strerror}."
                raise OutputError(message, "Redirect it elsewhere.") from None
        return size


def prepare_streams() -> None:
    """Wrap both streams for the whole process, before any file is opened; not a test's own streams."""
    for descriptor in range(3):
        # Open a closed one on /dev/null. Otherwise the next file opened would get its number, and with it a child's
        # traceback.
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing == descriptor:
                os.set_inheritable(descriptor, True)
            else:
                os.dup2(nothing, descriptor)
                os.close(nothing)
    sys.stdout = _wrap(sys.stdout, sys.__stdout__, Sink(1, strict=True))
    sys.stderr = _wrap(sys.stderr, sys.__stderr__, Sink(2, strict=False))


def ignore_closed_output() -> None:
    """From now on drop output that can't be written, for subcommands that must continue without a reader."""
    for sink in our_streams():
        sink.strict = False


@contextlib.contextmanager
def without_errors_on_screen() -> Iterator[None]:
    """Drop what is written to standard error meanwhile, even by a native library."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def open_text(sink: Sink, encoding: str, *, line_buffering: bool) -> TextIO:
    """Open a text stream over `sink`; characters that the encoding lacks are escaped."""
    # An unbuffered raw stream below TextIOWrapper is what `python -u` uses, too.
    return io.TextIOWrapper(sink, encoding, _ESCAPE, line_buffering=line_buffering)  # type: ignore[type-var]


def _wrap(stream: TextIO | None, original: TextIO | None, sink: Sink) -> TextIO:
    if stream is not None and stream is not original:
        return stream
    encoding = stream.encoding if stream is not None else "utf-8"
    return open_text(sink, encoding, line_buffering=sink.isatty() or sink.fileno() == 2)


def our_streams() -> list[Sink]:
    buffers = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
    return [buffer for buffer in buffers if isinstance(buffer, Sink)]


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    shown = (_PLAIN.get(char) or char.encode("ascii", "backslashreplace").decode() for char in text)
    return "".join(shown), error.end


codecs.register_error(_ESCAPE, _escape)
