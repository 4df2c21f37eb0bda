"""Standard streams that are safe to write to, even if closed, full, broken or without Unicode; and signals.

A failed write must not end a build: output that a full disk, a closed pipe or a closed terminal does not take
is dropped. Only subcommands that do nothing but print end there: with exit code 141 if the reader of a pipe
has closed it, as any program in a pipe, or with an error.

Ctrl-C, SIGTERM and a closed terminal end the run cleanly, a second request at once. From the first one on
nobody waits long for a reader that takes no output.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from fineweb_shards.errors import Interrupted, OutputError, ReaderGone
from fineweb_shards.system.terminal import shown_on

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
_PIECE_BYTES = 4096  # a pipe that is writable takes as many without blocking (PIPE_BUF)
_ESCAPE = "fineweb_shards.escape"
# Characters of this program's own messages, and their replacements where the encoding lacks them. One for
# one, because the width of progress bars is counted in characters.
_PLAIN = {"…": ".", "·": ".", "–": "-", "—": "-"}


class Sink(io.RawIOBase):
    """A raw stream over a file descriptor. It takes no lock, so that a signal handler can always write.

    `strict`: a failed write is an error; otherwise the data is dropped.
    """

    def __init__(self, descriptor: int, *, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.silent = False  # drop everything
        self.longest_wait_seconds: float | None = None  # for a reader that is slow; None: no limit
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`, or drop the rest of it; always report it as written."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and not self.silent:
                # Wait until the reader takes data. Not in `os.write`, which a signal handler could not leave.
                if not select.select([], [self._descriptor], [], self.longest_wait_seconds)[1]:
                    break
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._descriptor, view[:_PIECE_BYTES]) :]
        except OSError as error:
            if self.strict:
                self.silent = True  # so that the flush at exit does not raise again
                if isinstance(error, BrokenPipeError):
                    raise ReaderGone from None
                message = f"standard output can't be written: {error.strerror}."
                raise OutputError(message, "Write to another place.") from None
        return size


def prepare_streams() -> None:
    """Wrap both streams for the whole process; call it before any file is opened. Streams that are not
    Python's own, such as a test's, are left alone."""
    for descriptor in range(3):
        # A closed one is opened on /dev/null. Otherwise the next file that is opened would get its number,
        # and a child's traceback would be written into that file.
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
    """From now on drop what can't be written, for subcommands whose work must not end when a reader does."""
    for sink in _sinks():
        sink.strict = False


@contextlib.contextmanager
def without_errors_on_screen() -> Iterator[None]:
    """Drop what is written to standard error meanwhile, even by a library that is not Python's."""
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
    if os.name == "nt" and isinstance(stream, io.TextIOWrapper):  # a console can't be written by `os.write`
        stream.reconfigure(errors=_ESCAPE)
        return stream
    encoding = stream.encoding if stream is not None else "utf-8"
    return open_text(sink, encoding, line_buffering=sink.isatty() or sink.fileno() == 2)


def _sinks() -> list[Sink]:
    buffers = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
    return [buffer for buffer in buffers if isinstance(buffer, Sink)]


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    shown = (_PLAIN.get(char) or char.encode("ascii", "backslashreplace").decode() for char in text)
    return "".join(shown), error.end


codecs.register_error(_ESCAPE, _escape)


class Interrupts:
    """Handles signals from its creation on, by raising `Interrupted` in the main thread.

    `resume` is the command that continues the run; `on_stop` is called before `Interrupted` is raised;
    `wipe_sequence` returns the control characters that erase the progress bars.
    """

    def __init__(self, resume: str) -> None:
        self.on_stop: Callable[[], None] = lambda: None
        self.wipe_sequence: Callable[[], str] = str
        self._resume = resume
        self._stopping = False
        self._requests = 0  # Ctrl-C or SIGTERM
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:  # `nohup` ignores it
            signal.signal(_HANGUP, self._stop)

    def work_is_done(self) -> None:
        """Raise nothing from now on: what is left takes a moment, and its exit code must not say that the run
        was interrupted. A second request still ends the process at once."""
        self._stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # SIGHUP is not counted: when a terminal closes, both the kernel and the shell send it, and a session
        # that ends sends SIGTERM as well. All of them are one request.
        if number != _HANGUP:
            self._requests += 1
        if self._requests > 1:
            wipe = self.wipe_sequence()
            resume = shown_on(sys.stderr, f"resume with: {self._resume}")
            text = f"{wipe}\nInterrupted again: ended at once. Everything finished is kept.\n{resume}\n"
            for sink in _sinks():
                sink.silent = True  # other threads can't write after it
            with contextlib.suppress(OSError):
                if select.select([], [2], [], 0)[1]:
                    os.write(2, text.encode("ascii", "backslashreplace"))
            os._exit(128 + number)
        if not self._stopping:
            self._stopping = True
            for sink in _sinks():
                sink.longest_wait_seconds = 1.0
            self.on_stop()
            closed = number == _HANGUP
            raise Interrupted("The terminal was closed." if closed else "Interrupted.", 128 + number)


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt for Ctrl-C from now on, unless it is ignored; the entry point ends at once."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore what would end the process, from now on."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
