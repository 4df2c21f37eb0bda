"""`status --watch`: the same, again and again, until the run ends.

In a terminal it is refreshed in place; elsewhere it is a line a minute; with --json an object every time.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fineweb_shards.screen import describe
from fineweb_shards.status import RUNNING, Status, fit, read_status, show_status, status_lines

_EVERY_SECONDS = 2.0
_LINE_EVERY_SECONDS = 60.0
# The terminal's second screen, as `top` uses it: what was there before comes back.
_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch_status(folder: Path, *, as_json: bool) -> int:
    """Show it until no run is at work there; returns the exit code of the last state."""
    status = read_status(folder)
    try:
        if status.state == RUNNING:
            status = _follow(folder, status, as_json=as_json)
    except KeyboardInterrupt:
        status = read_status(folder)  # whoever watches has seen enough; the run does not notice
    show_status(status, as_json=as_json)
    return status.exit_code


def _follow(folder: Path, status: Status, *, as_json: bool) -> Status:
    if as_json:
        return _repeat(folder, status, lambda seen: show_status(seen, as_json=True), _EVERY_SECONDS)
    if not sys.stdout.isatty():
        return _repeat(folder, status, _print_line, _LINE_EVERY_SECONDS)
    sys.stdout.write(_ENTER)
    try:
        return _repeat(folder, status, _refresh, _EVERY_SECONDS)
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _repeat(folder: Path, status: Status, show: Callable[[Status], None], every_seconds: float) -> Status:
    next_time = 0.0
    while status.state == RUNNING:
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + every_seconds
            show(status)
        time.sleep(_EVERY_SECONDS)
        status = read_status(folder)
    return status


def _print_line(status: Status) -> None:
    if status.heartbeat is not None:
        print(f"{time.strftime('%H:%M')} {describe(status.heartbeat.snapshot)}", flush=True)


def _refresh(status: Status) -> None:
    size = shutil.get_terminal_size()
    lines = fit(status_lines(status), size.columns)[: size.lines - 1]
    sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW)
    sys.stdout.flush()
