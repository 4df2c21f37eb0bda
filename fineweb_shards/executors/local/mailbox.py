"""Wait for messages and deaths of workers, and for other wake-ups, in one call.

`multiprocessing.connection.wait` registers every pipe again at each call; with 64 workers that takes longer
than handling the message. Where the operating system has a better way, pipes are registered once.
"""

from __future__ import annotations

import selectors
import sys
from collections.abc import Iterable
from multiprocessing import connection

Waitable = connection.Connection | int  # a pipe, or the sentinel of a process


class Mailbox:
    """Everything that is listened to. `wait` returns what is ready."""

    def __init__(self) -> None:
        self._waitables: list[Waitable] = []
        # Windows can only select sockets.
        self._selector = selectors.DefaultSelector() if sys.platform != "win32" else None

    def add(self, *waitables: Waitable) -> None:
        """Listen to pipes and processes."""
        for waitable in waitables:
            self._waitables.append(waitable)
            if self._selector is not None:
                self._selector.register(waitable, selectors.EVENT_READ)

    def remove(self, *waitables: Waitable) -> None:
        """Listen to them no longer. They must still be open."""
        for waitable in waitables:
            self._waitables.remove(waitable)
            if self._selector is not None:
                self._selector.unregister(waitable)

    def wait(self, timeout_seconds: float) -> Iterable[object]:
        """Return what is ready, after the time limit perhaps nothing."""
        if self._selector is None:
            return connection.wait(self._waitables, timeout_seconds)
        return [key.fileobj for key, _ in self._selector.select(timeout_seconds)]

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()
