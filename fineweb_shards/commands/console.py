"""Print lines to standard output and standard error, for all verbs."""

from __future__ import annotations

import sys

from fineweb_shards.events import Event, Observer
from fineweb_shards.system.terminal import shown_on
from fineweb_shards.watching.screen import Screen


class WaitsOnScreen(Observer):
    """Shows waits and events on a screen, for work outside a run; in a run, watching/progress.py does."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: dict[str, str] = {}  # the reason of each cause

    def tell(self, event: Event) -> None:
        if event.loud:
            self._screen.say(event.text)

    def set_wait(self, cause: str, reason: str | None) -> None:
        if reason is None and self._shown.pop(cause, None) is not None:
            self._screen.say(f"the wait for the {cause} is over")
        elif reason is not None and self._shown.get(cause) != reason:
            self._shown[cause] = reason
            self._screen.say(reason)


def print_result(*lines: str) -> None:
    """Print to standard output, made safe for a terminal, and flush: an error message may follow."""
    print(shown_on(sys.stdout, "\n".join(lines)), flush=True)


def print_error(line: str) -> None:
    """Print to standard error, made safe for a terminal."""
    print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)
