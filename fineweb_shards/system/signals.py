"""Ctrl-C, SIGTERM and a terminal that is closed end the run cleanly; a second Ctrl-C or SIGTERM, at once."""

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
    """Catches signals from now on. `resume` is the command that goes on; `wipe_screen` gives what must be
    written to clear away what is being shown."""

    def __init__(self, resume: str) -> None:
        self.wipe_screen: Callable[[], str] = str
        self._resume = resume
        self._stopping = False
        self._asked = 0  # by a person, or by a program that ends others
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:  # `nohup` ignores it
            signal.signal(_HANGUP, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes is told by the kernel and the shell, and a session that ends sends SIGTERM
        # as well: that is one wish, not two.
        if number != _HANGUP:
            self._asked += 1
        if self._asked > 1:
            self._end_at_once(number)
        if not self._stopping:
            self._stopping = True
            limit_output_waits()
            closed = number == _HANGUP
            raise Interrupted("The terminal was closed." if closed else "Interrupted.", 128 + number)

    def _end_at_once(self, number: int) -> None:
        wipe = self.wipe_screen()
        resume = shown_on(sys.stderr, f"resume with: {self._resume}")
        write_final_message(
            f"{wipe}\nInterrupted again: ended at once. Everything finished is kept.\n{resume}\n"
        )
        os._exit(128 + number)
