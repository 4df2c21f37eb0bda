"""What a person sees while a run goes on: a bar in a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from fineweb_shards.terminal import printable
from fineweb_shards.units import show_count, show_seconds

_LINE_EVERY_SECONDS = 60.0


class Progress:
    """Tokens done of those expected. `expected_tokens` may be an estimate, and is None if unknown."""

    def __init__(self, expected_tokens: int | None, done_tokens: int) -> None:
        self._expected = expected_tokens
        self._start_tokens = self._tokens = done_tokens
        self._started = self._last_line = time.monotonic()
        self._bar = None
        self._waiting: str | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=expected_tokens,
                initial=done_tokens,
                unit="tok",
                unit_scale=True,
                dynamic_ncols=True,
                smoothing=0.1,
                desc="shard 0",
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, tokens: int, shard_index: int) -> None:
        """`tokens` more, in shard `shard_index`."""
        self._tokens += tokens
        if self._bar is not None:
            if self._expected is not None and self._tokens > self._expected:
                self._bar.total = self._expected = self._tokens  # it was an estimate
            self._bar.set_description_str(f"shard {shard_index}", refresh=False)
            self._bar.update(tokens)
        elif time.monotonic() - self._last_line >= _LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(self._line(shard_index), file=sys.stderr, flush=True)

    def show_waiting(self, reason: str | None) -> None:
        """What the run is waiting for; None: it goes on. From any thread."""
        if reason == self._waiting:
            return
        if self._bar is not None:
            self._bar.set_postfix_str(printable(reason or ""))
        elif reason is not None or self._waiting is not None:
            self.say(reason or "the network is back")
        self._waiting = reason

    def say(self, message: str) -> None:
        """A line of its own, above the bar."""
        message = printable(message)
        if self._bar is not None:
            self._bar.write(message, file=sys.stderr)
        else:
            print(message, file=sys.stderr, flush=True)

    def _line(self, shard_index: int) -> str:
        seconds = time.monotonic() - self._started
        speed = (self._tokens - self._start_tokens) / seconds
        line = f"shard {shard_index}: {show_count(self._tokens)} tokens"
        if self._expected:
            line += f" of about {show_count(self._expected)}"
        line += f", {show_count(speed)} tokens/s"
        if self._expected and speed:
            line += f", {show_seconds(max(0, self._expected - self._tokens) / speed)} left"
        return line
