"""Standard output and standard error as we find them: closed, full, broken, or unable to show a character.

Whoever looks on may not end the work: what can't be told to a full disk, a closed pipe or a terminal that is
gone is dropped. Only for verbs that do nothing but print is it an end: with 141 like any program in a pipe
whose reader has left, or with an error.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from fineweb_shards.errors import OutputError, ReaderGone

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_HURRY_SECONDS = 1.0
_PIECE_BYTES = 4096  # a pipe that is writable takes as many without blocking (PIPE_BUF)
_ESCAPE = "fineweb_shards.escape"
# What we write ourselves, and what it becomes where it can't be shown: bars are measured in characters.
_PLAIN = {"…": ".", "·": ".", "–": "-", "—": "-"}


class Sink(io.RawIOBase):
    """A descriptor to write to. Without any lock, so that a signal always gets through.

    `strict`: what can't be written is an error; otherwise it is dropped.
    """

    def __init__(self, descriptor: int, *, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.silent = False  # drop everything
        self.longest_wait_seconds: float | None = None  # for a reader that does not read
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """All of it, always."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and not self.silent and self._can_write():
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._descriptor, view[:_PIECE_BYTES]) :]
        except OSError as error:
            if self.strict:
                self.silent = True  # said once; not again when everything is flushed at the end
                self._fail(error)
        return size

    def _can_write(self) -> bool:
        """Wait for a reader. Not in the write itself: from here a signal can call us away."""
        return bool(select.select([], [self._descriptor], [], self.longest_wait_seconds)[1])

    def _fail(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise OutputError(
            f"standard output can't be written: {error.strerror}.", "Write to another place."
        ) from None


def prepare_streams() -> None:
    """For the whole process, before anything is opened. Streams that somebody has replaced stay."""
    for descriptor in range(3):
        _fill(descriptor)
    sys.stdout = _wrap(sys.stdout, sys.__stdout__, Sink(1, strict=True))
    sys.stderr = _wrap(sys.stderr, sys.__stderr__, Sink(2, strict=False))


def ignore_closed_output() -> None:
    """From now on the work is what counts: nobody who reads standard output can end it."""
    for sink in _sinks():
        sink.strict = False


def limit_output_waits() -> None:
    """From now on a reader that does not read is waited for no longer than a moment."""
    for sink in _sinks():
        sink.longest_wait_seconds = _HURRY_SECONDS


def write_final_message(text: str) -> None:
    """On standard error, right before the end: nothing that another thread writes comes behind it."""
    for sink in _sinks():
        sink.silent = True
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode("ascii", "backslashreplace"))


def open_text(sink: Sink, encoding: str, *, line_buffering: bool) -> TextIO:
    """What can't be shown in the encoding is escaped."""
    # A raw stream is all that is needed: Python does the same for `python -u`.
    return io.TextIOWrapper(sink, encoding, _ESCAPE, line_buffering=line_buffering)  # type: ignore[type-var]


def _wrap(stream: TextIO | None, original: TextIO | None, sink: Sink) -> TextIO:
    if stream is not None and stream is not original:
        return stream
    if os.name == "nt" and isinstance(stream, io.TextIOWrapper):  # its consoles are no plain descriptors
        stream.reconfigure(errors=_ESCAPE)
        return stream
    encoding = stream.encoding if stream is not None else "utf-8"
    return open_text(sink, encoding, line_buffering=sink.isatty() or sink.fileno() == 2)


def _sinks() -> list[Sink]:
    buffers = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
    return [buffer for buffer in buffers if isinstance(buffer, Sink)]


def _fill(descriptor: int) -> None:
    """A closed one would be the number of the next file that is opened, and a child's traceback end there."""
    try:
        os.fstat(descriptor)
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing == descriptor:
            os.set_inheritable(descriptor, True)
        else:
            os.dup2(nothing, descriptor)
            os.close(nothing)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    shown = (_PLAIN.get(char) or char.encode("ascii", "backslashreplace").decode() for char in text)
    return "".join(shown), error.end


codecs.register_error(_ESCAPE, _escape)
