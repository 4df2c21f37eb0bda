"""How many requests the stand-in hub allows: fixed windows, told in every answer, as the real hub does it."""

from __future__ import annotations

import math
import threading
import time

Limit = tuple[int, float]  # so many requests in so many seconds


class Quota:
    """Counts the requests of one kind (`resolvers`, `api`). The first one begins the first window."""

    def __init__(self, name: str, limit: Limit) -> None:
        self._name = name
        self.requests, self.window_seconds = limit
        self._lock = threading.Lock()
        self._ends_at = 0.0
        self._left = 0

    def take(self) -> tuple[bool, dict[str, str]]:
        """Count a request; return whether it is allowed, and the headers that tell what is left."""
        with self._lock:
            now = time.monotonic()
            if now >= self._ends_at:
                elapsed = (now - self._ends_at) % self.window_seconds if self._ends_at else 0.0
                self._ends_at = now - elapsed + self.window_seconds
                self._left = self.requests
            allowed = self._left > 0
            self._left = max(0, self._left - 1)
            seconds = math.ceil(self._ends_at - now)  # whole ones, so that who waits as told is never early
            policy = f'"fixed window";"{self._name}";q={self.requests};w={math.ceil(self.window_seconds)}'
            limit = f'"{self._name}";r={self._left};t={seconds}'
            return allowed, {"RateLimit": limit, "RateLimit-Policy": policy}
