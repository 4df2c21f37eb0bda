"""Handle signals: Ctrl-C, SIGTERM and a closed terminal end the run cleanly, a second request at once.

From the first one on nobody waits long for a reader that takes no output.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from fineweb_shards.errors import Interrupted
from fineweb_shards.system.standard_streams import our_streams
from fineweb_shards.system.terminal import shown_on

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


class Interrupts:
    """Handles signals from its creation on, by raising `Interrupted` in the main thread.

    `resume` is the command that continues the run; `on_stop` is called before `Interrupted` is raised; `wipe_sequence`
    returns the control characters that erase the progress bars.
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
        sys.unraisablehook = self._try_again

    def work_is_done(self) -> None:
        """Raise nothing from now on: what is left takes a moment, and its exit code must not say that the run was
        interrupted. A second request still ends the process at once."""
        self._stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # SIGHUP is not counted: when a terminal closes, both the kernel and the shell send it, and a session that ends
        # sends SIGTERM as well. All of them are one request.
        if number != _HANGUP:
            self._requests += 1
        if self._requests > 1:
            wipe = self.wipe_sequence()
            resume = shown_on(sys.stderr, f"resume with: {self._resume}")
            text = f"{wipe}\nInterrupted again: ended at once. Everything finished is kept.\n{resume}\n"
            for sink in our_streams():
                sink.silent = True  # other threads can't write after it
            with contextlib.suppress(OSError):
                if select.select([], [2], [], 0)[1]:
                    os.write(2, text.encode("ascii", "backslashreplace"))
            os._exit(128 + number)
        if not self._stopping:
            self._stopping = True
            for sink in our_streams():
                sink.longest_wait_seconds = 1.0
            self.on_stop()
            closed = number == _HANGUP
            raise Interrupted("The terminal was closed." if closed else "Interrupted.", 128 + number)

    def _try_again(self, lost: sys.UnraisableHookArgs) -> None:
        """Signal once more if `Interrupted` was raised where Python drops every exception: in the callback of a weak
        reference, such as the one that closes a stream's memory, or in `__del__`."""
        if not isinstance(lost.exc_value, Interrupted):
            sys.__unraisablehook__(lost)
            return
        self._stopping, self._requests = False, 0
        number = lost.exc_value.exit_code - 128
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))  # not here: it would be dropped again
        again.daemon = True
        again.start()


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt for Ctrl-C from now on, unless it is ignored; the entry point ends at once."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore what would end the process, from now on."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def stop_with_caller(process: int) -> None:
    """Stop as after SIGTERM when the process that has called the library (api/process.py) is gone."""

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="caller", daemon=True).start()
