"""Retry an action that fails for a while, such as a request during an outage or a write to a full disk.

Nothing here depends on HTTP. An action raises `TransientError` for a failure that may pass; every other exception is
final.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fineweb_shards.errors import DiskFullError, NetworkError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.system.machine import free_disk_bytes
from fineweb_shards.units import show_bytes, show_seconds

Result = TypeVar("Result")

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 120.0
_REPORT_AFTER_SECONDS = 3.0  # shorter waits are only logged
_LONG_WAIT_SECONDS = 60.0  # the report of a longer pause has the time of the next try
_FEW_TRIES = 4  # for a failure that is probably permanent


class TransientError(Exception):
    """A failure that may pass. `retry_after_seconds` is the server's request; `advice` tells the user what helps. If
    the failure is probably permanent, `error` is raised after a few tries."""

    def __init__(
        self, reason: str, retry_after_seconds: float = 0.0, advice: str = "", error: ShardError | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.advice = advice
        self.error = error


class Clock:
    """The real clock. Tests replace it with one that does not sleep."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wall(self, ahead_seconds: float = 0.0) -> str:
        """Format the time of day now, or some seconds ahead; far ahead, with the day of the week."""
        form = "%H:%M" if ahead_seconds < 12 * 3600 else "%a %H:%M"
        return time.strftime(form, time.localtime(time.time() + ahead_seconds))


class Retrier:
    """Repeats an action until it succeeds, with growing pauses, for at most `max_outage_seconds`."""

    cause = "network"
    longest_wait_seconds = LONGEST_WAIT_SECONDS
    error: type[ShardError] = NetworkError

    def __init__(self, max_outage_seconds: float, observer: Observer | None = None, clock: Clock | None = None) -> None:
        self.max_outage_seconds = max_outage_seconds
        self.observer = observer or Observer()
        self.clock = clock or Clock()

    def call(self, action: Callable[[], Result]) -> Result:
        """Return the action's result; raise `error` once it has failed for too long."""
        began: float | None = None
        since, wait_reported = "", False
        tries = doubtful_tries = 0
        while True:
            try:
                result = action()
            except TransientError as failure:
                now = self.clock.now()
                if began is None:
                    began, since = now, self.clock.wall()
                doubtful_tries += failure.error is not None
                if failure.error is not None and doubtful_tries == _FEW_TRIES:
                    raise failure.error from None
                left = began + self.max_outage_seconds - now
                if left <= 0:
                    advice = failure.advice[:1].upper() + failure.advice[1:]
                    raise self.error(
                        f"Gave up waiting for the {self.cause} after {show_seconds(now - began)}, "
                        f"since {since}: {failure.reason}.",
                        f"{advice}. {self.error.hint}" if advice else None,
                    ) from None
                # The pause doubles, with jitter, so that many workers don't retry at once.
                longest = min(self.longest_wait_seconds, FIRST_WAIT_SECONDS * 2.0 ** min(tries, 30))
                wait = min(left, max(failure.retry_after_seconds, longest * random.uniform(0.5, 1.0)))
                self.observer.tell(Event("retry", f"{failure.reason}; again in {wait:.1f} s", loud=False))
                if now - began + wait >= _REPORT_AFTER_SECONDS:
                    wait_reported = True
                    reason = f"waiting for the {self.cause} since {since} ({failure.reason})"
                    if wait >= _LONG_WAIT_SECONDS:
                        reason += f", next try at {self.clock.wall(wait)}"
                    reason += f", giving up at {self.clock.wall(left)}"
                    self.observer.set_wait(self.cause, f"{reason}; {failure.advice}" if failure.advice else reason)
                self.clock.sleep(wait)
                tries += 1
            else:
                if wait_reported:
                    self.observer.set_wait(self.cause, None)
                return result


class Disk(Retrier):
    """The disk of an output folder. A run survives a full one overnight: it retries up to a time limit."""

    cause = "disk"
    longest_wait_seconds = 10.0
    error = DiskFullError

    def __init__(self, folder: Path, max_outage_seconds: float, observer: Observer, clock: Clock | None = None) -> None:
        super().__init__(max_outage_seconds, observer, clock)
        self._folder = folder

    def attempt(self, action: Callable[[], Result]) -> Result:
        """Repeat `action` while it raises DiskFullError, up to the time limit. It must be repeatable."""

        def once() -> Result:
            try:
                return action()
            except DiskFullError as error:
                raise TransientError(error.message.rstrip(".")) from error

        return self.call(once)

    def wait_for(self, needed_bytes: int) -> None:
        """Wait until `needed_bytes` are free; DiskFullError after the time limit."""

        def look() -> None:
            free = free_disk_bytes(self._folder)
            if free < needed_bytes:
                needed, missing = show_bytes(needed_bytes), show_bytes(needed_bytes - free)
                raise DiskFullError(
                    f"{self._folder}: the next shard needs {needed}, but only {show_bytes(free)} are free: "
                    f"{missing} are missing."
                )

        self.attempt(look)
