"""The line from the stand-in hub: how fast each connection is, and all of them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

PIECE_BYTES = 1 << 20  # without a limit
PIECES_PER_SECOND = 40  # with one
# Whoever wakes up late may catch up by so much; without it every piece would add a little to the time.
CATCH_UP_SECONDS = 0.02


class Pace:
    """A pipe that carries so many bytes a second, in the order in which they are announced."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, count: int) -> float:
        """Return the time at which `count` further bytes are through."""
        with self._lock:
            begin = max(self._free_at, time.monotonic() - CATCH_UP_SECONDS)
            self._free_at = begin + count / self.bytes_per_second
            return self._free_at


class Line:
    """The latency of every request, and the two limits of what the CDN sends."""

    def __init__(
        self, latency_seconds: float, connection_bytes_per_second: float | None, bytes_per_second: float | None
    ) -> None:
        self.latency_seconds = latency_seconds
        self._connection_bytes_per_second = connection_bytes_per_second
        self._shared = Pace(bytes_per_second) if bytes_per_second else None

    def open_connection(self) -> list[Pace]:
        """Return what a new connection has to keep to: its own limit, and the one that all share."""
        own = self._connection_bytes_per_second
        return [*([Pace(own)] if own else []), *([self._shared] if self._shared else [])]


def piece_bytes(paces: Iterable[Pace]) -> int:
    """Return how much to send at a time: what takes 25 ms, on a fast line 1 MiB."""
    slowest = min((pace.bytes_per_second for pace in paces), default=PIECE_BYTES * PIECES_PER_SECOND)
    return min(PIECE_BYTES, max(1, int(slowest / PIECES_PER_SECOND)))


def wait_for(paces: Iterable[Pace], count: int) -> None:
    """Sleep until `count` bytes are through all of them."""
    through = max((pace.reserve(count) for pace in paces), default=0.0)
    if (seconds := through - time.monotonic()) > 0:
        time.sleep(seconds)
