"""What a person sees while a run goes on: a bar in a terminal, a line a minute elsewhere; and the log."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from fineweb_shards.journal import Journal
from fineweb_shards.observer import Event, Observer
from fineweb_shards.terminal import printable
from fineweb_shards.units import show_count, show_seconds

_LINE_EVERY_SECONDS = 60.0


class Progress(Observer):
    """Tokens done of those expected. `expected_tokens` may be an estimate, and is None if unknown."""

    def __init__(self, journal: Journal, expected_tokens: int | None, done_tokens: int) -> None:
        self._journal = journal
        self._expected = expected_tokens
        self._start_tokens = self._tokens = done_tokens
        self._started = self._last_line = time.monotonic()
        self._bar = None
        self._waits: dict[str, str] = {}  # cause to reason
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

    def expected_left(self) -> int | None:
        """Tokens still to come, as well as it is known."""
        return None if self._expected is None else max(0, self._expected - self._tokens)

    def tell(self, event: Event) -> None:
        self._journal.write(event)
        if event.loud:
            self._say(event.text)

    def wait(self, cause: str, reason: str | None) -> None:
        begun = cause not in self._waits
        if reason is None:
            if not begun:
                del self._waits[cause]
                # In a terminal the bar shows it.
                self.tell(Event("wait", f"the wait for the {cause} is over", loud=self._bar is None))
        else:
            self._waits[cause] = reason
            if begun:
                self.tell(Event("wait", reason, loud=self._bar is None))
        if self._bar is not None:
            self._bar.set_postfix_str(printable("; ".join(self._waits.values())))

    def _say(self, message: str) -> None:
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
