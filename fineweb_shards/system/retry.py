"""Retries for a network or a full disk: what to do again, when, and for how long.

Nothing here knows HTTP or files. An action that fails in a way that may pass raises `TransientError`;
everything else it raises is final.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from fineweb_shards.errors import NetworkError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.units import show_seconds

Result = TypeVar("Result")

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 120.0
# Shorter failures are nobody's business.
TELL_AFTER_SECONDS = 3.0
# Who waits that long wants to know when it goes on.
_LONG_WAIT_SECONDS = 60.0
_SHOW_DAY_SECONDS = 12 * 3600.0


class TransientError(Exception):
    """Something that may pass. The server asks for `retry_after_seconds`; `advice` is what would help."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.advice = advice


class Clock:
    """The real one. Tests have one whose hours pass in no time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wall(self, ahead_seconds: float = 0.0) -> str:
        """The time of day, now or in a while; with its day where that is not clear."""
        form = "%H:%M" if ahead_seconds < _SHOW_DAY_SECONDS else "%a %H:%M"
        return time.strftime(form, time.localtime(time.time() + ahead_seconds))


class Retrier:
    """Does an action again until it succeeds, with growing pauses, up to an outage's length."""

    def __init__(
        self,
        max_outage_seconds: float,
        observer: Observer | None = None,
        *,
        clock: Clock | None = None,
        cause: str = "network",
        longest_wait_seconds: float = LONGEST_WAIT_SECONDS,
        error: type[ShardError] = NetworkError,
    ) -> None:
        self.observer = observer or Observer()
        self._max_outage_seconds = max_outage_seconds
        self._clock = clock or Clock()
        self._cause = cause
        self._longest_wait_seconds = longest_wait_seconds
        self._error = error
        self._chooser = random.Random()

    def call(self, action: Callable[[], Result]) -> Result:
        """The action's result; an error once it has failed for too long."""
        began: float | None = None
        since = ""
        tries = 0
        told = False
        while True:
            try:
                result = action()
            except TransientError as failure:
                now = self._clock.now()
                if began is None:
                    began, since = now, self._clock.wall()
                left = began + self._max_outage_seconds - now
                if left <= 0:
                    raise self._error(
                        f"Gave up waiting for the {self._cause} after {show_seconds(now - began)}, "
                        f"since {since}: {failure.reason}."
                    ) from None
                wait = min(left, self._pause(tries, failure.retry_after_seconds))
                self.observer.tell(Event("retry", f"{failure.reason}; again in {wait:.1f} s", loud=False))
                if now - began + wait >= TELL_AFTER_SECONDS:
                    told = True
                    self.observer.wait(self._cause, self._words(failure, since, wait, left))
                self._clock.sleep(wait)
                tries += 1
            else:
                if told:
                    self.observer.wait(self._cause, None)
                return result

    def _words(self, failure: TransientError, since: str, wait_seconds: float, left_seconds: float) -> str:
        """For whom, since when, and until when."""
        words = [f"waiting for the {self._cause} since {since} ({failure.reason})"]
        if wait_seconds >= _LONG_WAIT_SECONDS:
            words.append(f"next try at {self._clock.wall(wait_seconds)}")
        words.append(f"giving up at {self._clock.wall(left_seconds)}")
        return ", ".join(words) + (f"; {failure.advice}" if failure.advice else "")

    def _pause(self, tries: int, asked_seconds: float) -> float:
        """Doubling, with jitter, so that many workers don't come back at once."""
        longest = min(self._longest_wait_seconds, FIRST_WAIT_SECONDS * 2.0 ** min(tries, 30))
        return max(asked_seconds, longest * self._chooser.uniform(0.5, 1.0))
