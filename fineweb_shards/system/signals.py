"""Handle signals: Ctrl-C, SIGTERM and a closed terminal end the run cleanly, a second request at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from fineweb_shards.errors import Interrupted
from fineweb_shards.system.standard_streams import limit_output_waits, write_final_message
from fineweb_shards.system.terminal import shown_on

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


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
            self._end_at_once(number)
        if not self._stopping:
            self._stopping = True
            limit_output_waits()
            self.on_stop()
            closed = number == _HANGUP
            raise Interrupted("The terminal was closed." if closed else "Interrupted.", 128 + number)

    def _end_at_once(self, number: int) -> None:
        wipe = self.wipe_sequence()
        resume = shown_on(sys.stderr, f"resume with: {self._resume}")
        write_final_message(
            f"{wipe}\nInterrupted again: ended at once. Everything finished is kept.\n{resume}\n"
        )
        os._exit(128 + number)


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt for Ctrl-C from now on, unless it is ignored; the entry point ends at once."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore what would end the process, from now on."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
