"""Lines on standard output and standard error, for all verbs."""

from __future__ import annotations

import sys

from fineweb_shards.events import Observer
from fineweb_shards.system.terminal import shown_on
from fineweb_shards.watching.screen import Screen


class WaitsOnScreen(Observer):
    """Shows waits before there is a run with its own way of showing them."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def wait(self, cause: str, reason: str | None) -> None:
        self._screen.say(reason or f"the wait for the {cause} is over")


def print_result(*lines: str) -> None:
    """On standard output. File names are data too. At once: an error may come next."""
    print(shown_on(sys.stdout, "\n".join(lines)), flush=True)


def print_error(line: str) -> None:
    """On standard error."""
    print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)
