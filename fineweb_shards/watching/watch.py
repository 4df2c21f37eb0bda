"""`status --watch`: show the status repeatedly until the run ends. It may be started before the run is.

In a terminal it is refreshed in place every two seconds; in a notebook, a file or a pipe it is a line a
minute; with --json an object every two seconds. A run tells a bucket how it is every 15 seconds only, and
every look costs requests: there it is every ten seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fineweb_shards.store.store import Store
from fineweb_shards.system.terminal import Redraw, clip, redraw, shown_on, terminal_size, wrap
from fineweb_shards.watching.screen import describe
from fineweb_shards.watching.status import (
    RUNNING,
    Status,
    continuation_indent,
    event_lines,
    find_status,
    read_status,
    row_lines,
    show_status,
)

_EVERY_SECONDS = 2.0
_REMOTE_EVERY_SECONDS = 10.0
_LINE_EVERY_SECONDS = 60.0
# The terminal's alternate screen, as `top` uses it: on leaving, the old content is restored.
_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch_status(store: Store, *, as_json: bool) -> int:
    """Show the status until no run is active there; return the exit code of the last state. Where no build
    has begun yet, wait for one."""
    status = find_status(store) or _wait_for_build(store)
    try:
        if status.state == RUNNING:
            status = _follow(store, status, as_json=as_json)
    except KeyboardInterrupt:
        status = read_status(store)  # Ctrl-C ends only this command, not the run
    show_status(status, as_json=as_json)
    return status.exit_code


def _wait_for_build(store: Store) -> Status:
    if store.folder.is_file():
        return read_status(store)  # raises: no build can begin there
    line = f"Waiting for a build in {store.location} to begin; Ctrl-C ends this command."
    print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)
    while True:
        _pause(store)
        if (status := find_status(store)) is not None:
            return status


def _follow(store: Store, status: Status, *, as_json: bool) -> Status:
    if as_json:
        return _repeat(store, status, lambda now: show_status(now, as_json=True), _EVERY_SECONDS)
    if redraw(sys.stdout) is not Redraw.SCREEN:
        return _repeat(store, status, _print_line, _LINE_EVERY_SECONDS)
    sys.stdout.write(_ENTER)
    try:
        return _repeat(store, status, _refresh, _EVERY_SECONDS)
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _repeat(store: Store, status: Status, show: Callable[[Status], None], every_seconds: float) -> Status:
    next_time = 0.0
    while status.state == RUNNING:
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + every_seconds
            show(status)
        _pause(store)
        status = read_status(store)
    return status


def _pause(store: Store) -> None:
    time.sleep(_REMOTE_EVERY_SECONDS if store.is_remote else _EVERY_SECONDS)


def _print_line(status: Status) -> None:
    if status.heartbeat is not None:
        line = f"{time.strftime('%H:%M')} {describe(status.heartbeat.snapshot)}"
        print(shown_on(sys.stdout, line), flush=True)


def _refresh(status: Status) -> None:
    size = terminal_size(sys.stdout)
    # A character in the last column would make some terminals begin another line.
    lines = fit_screen(status, size.columns - 1, size.lines)
    sys.stdout.write(_HOME + "\n".join(_CLEAR_LINE + line for line in lines) + _CLEAR_BELOW)
    sys.stdout.flush()


def fit_screen(status: Status, columns: int, rows: int) -> list[str]:
    """Return the lines of a status that fit the terminal: all rows, then as many of the newest events as
    there is room for. If even the rows don't fit, the last ones are left out."""

    def pieces(line: str) -> list[str]:
        return [
            clip(piece, columns)
            for piece in wrap(line, columns, hang=continuation_indent(line), break_words=True)
        ]

    lines = [piece for row in row_lines(status) for piece in pieces(row)]
    room = rows - len(lines) - len(("", "last events"))
    kept: list[str] = []
    for event in reversed([pieces(line) for line in event_lines(status)]):
        if len(kept) + len(event) > room:
            break
        kept = [*event, *kept]
    return [*lines, *(["", "last events", *kept] if kept else [])][:rows]
