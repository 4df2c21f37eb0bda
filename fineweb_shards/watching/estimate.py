"""Estimate how many tokens a run will make, and how long it will take. Pure functions of what they are given.

The plan's number of tokens is a guess from a small sample of the input, unless `token_count` gives it. As the
run goes on, the guess is replaced by what was measured: the tokens made from the share of the input read.
"""

from __future__ import annotations

from collections import deque

# The plan's guess has the weight of a measurement over this share of the input.
_GUESS_SHARE = 0.03
WINDOW_SECONDS = 300.0


class Total:
    """Estimates the number of tokens in the whole stream."""

    def __init__(self, planned_tokens: int | None, *, exact: bool = False, limit: int | None = None) -> None:
        self._planned_tokens = planned_tokens
        self._limit = limit
        self.exact = exact

    def tokens(self, done_tokens: int, read_tokens: int, read_share: float | None) -> int | None:
        """Return the expected number of tokens; None if nothing is known.

        `read_tokens` were made from `read_share` of the input; the rest of `done_tokens` from the file or
        row group behind it, of which only the beginning was read.
        """
        if self._planned_tokens is None:
            return None
        total: float = self._planned_tokens
        if not self.exact and read_share is not None:
            weight = _GUESS_SHARE + read_share
            whole_input = (_GUESS_SHARE * self._planned_tokens + read_tokens) / weight
            total = read_tokens + (1 - read_share) * whole_input
        if self._limit is not None:
            total = min(total, self._limit)
        return max(done_tokens, round(total))


class Speedometer:
    """Measures tokens or bytes per second over the last minutes of work, not counting start-up and waits."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._marks: deque[tuple[float, int]] = deque()  # seconds of work, amount
        self._last: tuple[float, int] | None = None
        self._work_seconds = 0.0

    def add(self, now_seconds: float, amount: int, *, working: bool) -> None:
        """Record the amount reached by now; to be called about once a second."""
        if self._last is None:
            self._last = (now_seconds, amount)
            return
        last_seconds, last_amount = self._last
        self._last = (now_seconds, amount)
        if not self._marks:  # measure from the first increase on: before it the workers were starting
            if amount > last_amount:
                self._marks.append((0.0, amount))
            return
        if working:
            self._work_seconds += now_seconds - last_seconds
        self._marks.append((self._work_seconds, amount))
        while self._work_seconds - self._marks[1][0] > self._window_seconds:
            self._marks.popleft()

    @property
    def per_second(self) -> float | None:
        """The speed; None before anything was measured."""
        if len(self._marks) < 2:
            return None
        (first_seconds, first), (last_seconds, last) = self._marks[0], self._marks[-1]
        seconds = last_seconds - first_seconds
        return (last - first) / seconds if seconds > 0 else None


def seconds_left(
    done_tokens: int, expected_tokens: int | None, tokens_per_second: float | None
) -> float | None:
    """Return the time that the remaining tokens will take; None if the total or the speed is unknown."""
    if expected_tokens is None or not tokens_per_second:
        return None
    return (expected_tokens - done_tokens) / tokens_per_second
