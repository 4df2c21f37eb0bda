"""Decide how many batches a worker may have at once: as many as the network asks for, and no more.

A worker fetches all its batches at the same time, each over a connection of its own, and encodes them one
after the other. Two are enough where bytes come from a disk. A single connection to a CDN is slow on a long
line, so from the hub a worker begins with several. While workers have to wait for bytes they get more, as
long as that brings more bytes; while nobody waits they get fewer, because what is fetched ahead takes memory.
No clock: the caller says what time it is.
"""

from __future__ import annotations

FEWEST_BATCHES = 2  # a worker gets its next batch before it has finished the last
FIRST_REMOTE_BATCHES = 8
MOST_BATCHES = 16
# Long enough for every worker to have finished some batches.
_INTERVAL_SECONDS = 1.0
_BATCHES_PER_WORKER = 2
# The share of their time for which workers wait.
_TOO_MUCH_WAITING = 0.03
_LITTLE_WAITING = 0.005
_WORTHWHILE_GAIN = 1.05
_TRY_AGAIN_SECONDS = 60.0


class Lookahead:
    """The number of batches for each worker, `batches`, by what they report at the end of each batch."""

    def __init__(self, workers: int, *, is_remote: bool) -> None:
        self.batches = FIRST_REMOTE_BATCHES if is_remote else FEWEST_BATCHES
        self._workers = workers
        self._is_remote = is_remote
        self._began: float | None = None
        self._done = 0
        self._fetched_bytes = 0
        self._waited_seconds = 0.0
        self._before: tuple[int, float] | None = None  # fewer batches, and the bytes a second with them
        self._try_again_at = 0.0

    def note_batch(self, fetched_bytes: int, waited_seconds: float, now: float) -> None:
        """Take note of a finished batch: what was fetched since the one before, and how long was waited."""
        if not self._is_remote:
            return
        if self._began is None:
            self._began = now
        self._done += 1
        self._fetched_bytes += fetched_bytes
        self._waited_seconds += waited_seconds
        seconds = now - self._began
        if seconds >= _INTERVAL_SECONDS and self._done >= _BATCHES_PER_WORKER * self._workers:
            waiting = self._waited_seconds / (seconds * self._workers)
            self._decide(waiting, self._fetched_bytes / seconds, now)
            self._began, self._done, self._fetched_bytes, self._waited_seconds = now, 0, 0, 0.0

    def _decide(self, waiting: float, speed: float, now: float) -> None:
        before, self._before = self._before, None
        if before is not None and waiting > _TOO_MUCH_WAITING and speed < _WORTHWHILE_GAIN * before[1]:
            # The line is full, or the hub is slow: more connections only take memory.
            self.batches, self._try_again_at = before[0], now + _TRY_AGAIN_SECONDS
        elif waiting > _TOO_MUCH_WAITING and now >= self._try_again_at and self.batches < MOST_BATCHES:
            self._before = self.batches, speed
            self.batches = min(MOST_BATCHES, self.batches * 3 // 2)
        elif waiting < _LITTLE_WAITING:
            self.batches = max(FEWEST_BATCHES, self.batches - 1)
