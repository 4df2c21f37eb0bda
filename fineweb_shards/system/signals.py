"""Handle signals: Ctrl-C, SIGTERM and a closed terminal end the run cleanly, a second request at once.

After the first one, output no longer waits for a slow reader.
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


class Interrupts:
    """Handles signals, once created, by raising `Interrupted` in the main thread.

    `resume` is the command that resumes the run; `on_stop` is called before `Interrupted` is raised; `wipe_sequence`
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
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
            signal.signal(signal.SIGHUP, self._stop)
        sys.unraisablehook = self._try_again

    def work_is_done(self) -> None:
        """Raise nothing from now on: the exit code must not claim an interruption. A second one still ends it."""
        self._stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # SIGHUP does not count: when a terminal closes, the kernel and the shell both send it, and a session that ends
        # sends SIGTERM as well. Together they are one request.
        if number != signal.SIGHUP:
            self._requests += 1
        if self._requests > 1:
            wipe = self.wipe_sequence()
            resume = shown_on(sys.stderr, f"resume with: {self._resume}")
            text = f"{wipe}\nInterrupted again: ended at once. Everything finished is kept.\n{resume}\n"
            for sink in our_streams():
                sink.silent = True  # other threads must not write after it
            with contextlib.suppress(OSError):
                if select.select([], [2], [], 0)[1]:
                    os.write(2, text.encode("ascii", "backslashreplace"))
            os._exit(128 + number)
        if not self._stopping:
            self._stopping = True
            for sink in our_streams():
                sink.longest_wait_seconds = 1.0
            self.on_stop()
            closed = number == signal.SIGHUP
            raise Interrupted("The terminal was closed." if closed else "Interrupted.", 128 + number)

    def _try_again(self, lost: sys.UnraisableHookArgs) -> None:
        """Signal again if `Interrupted` was raised where Python drops exceptions: in `__del__`, or in the callback of a
        weak reference, such as the one that closes a stream's memory."""
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def stop_with_caller(process: int) -> None:
    """Stop as after SIGTERM when the process that called the library (api/process.py) is gone."""

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="caller", daemon=True).start()
