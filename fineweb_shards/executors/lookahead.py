"""Decide how many batches a worker may have at once: as many as the network asks for, and no more.

A worker fetches all its batches at the same time, each over a connection of its own, and encodes them one
after the other. Two are enough where bytes come from a disk. A single connection to a CDN is slow on a long
line, so while workers have to wait for bytes they get more batches, as long as that brings more bytes. No
clock: the caller says what time it is.
"""

from __future__ import annotations

FEWEST_BATCHES = 2  # a worker gets its next batch before it has finished the last
MOST_BATCHES = 16
# Long enough for every worker to have finished some batches.
_INTERVAL_SECONDS = 1.0
_BATCHES_PER_WORKER = 2
# Workers that wait for less than this share of the time have enough.
_ENOUGH_SHARE = 0.03
_WORTHWHILE_GAIN = 1.05
_TRY_AGAIN_SECONDS = 60.0


class Lookahead:
    """The number of batches for each worker, `batches`, by what they report at the end of each batch."""

    def __init__(self, workers: int) -> None:
        self.batches = FEWEST_BATCHES
        self._workers = workers
        self._began: float | None = None
        self._done = 0
        self._fetched_bytes = 0
        self._waited_seconds = 0.0
        self._speed_before = 0.0  # bytes a second with fewer batches
        self._try_again_at = 0.0

    def note_batch(self, fetched_bytes: int, waited_seconds: float, now: float) -> None:
        """Take note of a finished batch: what was fetched since the one before, and how long was waited."""
        if self._began is None:
            self._began = now
        self._done += 1
        self._fetched_bytes += fetched_bytes
        self._waited_seconds += waited_seconds
        seconds = now - self._began
        if seconds >= _INTERVAL_SECONDS and self._done >= _BATCHES_PER_WORKER * self._workers:
            self._decide(seconds, now)
            self._began, self._done, self._fetched_bytes, self._waited_seconds = now, 0, 0, 0.0

    def _decide(self, seconds: float, now: float) -> None:
        speed = self._fetched_bytes / seconds
        if self._waited_seconds < _ENOUGH_SHARE * seconds * self._workers or now < self._try_again_at:
            return
        if self._speed_before and speed < _WORTHWHILE_GAIN * self._speed_before:
            # The line is full, or the hub is slow: more connections would only take memory.
            self.batches = max(FEWEST_BATCHES, self.batches * 2 // 3)
            self._speed_before, self._try_again_at = 0.0, now + _TRY_AGAIN_SECONDS
        elif self.batches < MOST_BATCHES:
            self._speed_before = speed
            self.batches = min(MOST_BATCHES, self.batches * 3 // 2)
