"""In a terminal: a bar for the whole job, and below it one for the current shard.

total      37%|██████████▍                 | 3.71B of 10B tokens, 16.8M/s, 6 min left
shard 37   71%|█████████████████████▍      | 2 workers, 731 MB, encoding

While the run waits, the reason takes the second bar's place, and as many lines as it needs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from tqdm.std import Bar

from fineweb_shards.observer import Event
from fineweb_shards.screen import JsonLines, Lines, Screen, describe_machine, describe_state, describe_tokens
from fineweb_shards.snapshot import STARTING, VERIFYING, WAITING, Snapshot
from fineweb_shards.terminal import clip, printable, shown_on, terminal_size, wrap
from fineweb_shards.units import show_count, show_seconds

_NAME_COLUMNS = 9
_BAR_COLUMNS = (10, 0)  # the least a bar gets: where nothing fits beside it there is none
_CLEAR_BELOW, _CLEAR_LINE = "\x1b[J", "\x1b[K"
_YELLOW, _PLAIN = "\x1b[33m", "\x1b[0m"


def choose_screen(*, quiet: bool, as_json: bool) -> Screen:
    """What fits the flags and what standard error is."""
    if as_json:
        return JsonLines()
    if quiet:
        return Screen()
    return Bars() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


class Bars(Screen):
    """A few lines at the bottom of the terminal, drawn again in place.

    The cursor rests at the beginning of the first: whatever a narrower terminal has made of the lines,
    everything from there on can be wiped. Every change is one write, so that none is seen half done.
    """

    def __init__(self) -> None:
        self._frame: list[str] = []
        self._coloured = not os.environ.get("NO_COLOR")
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        with self._lock:
            self._write(f"\r{_CLEAR_BELOW}{shown_on(sys.stderr, text)}\n{self._drawn()}")

    def tell(self, event: Event) -> None:
        self.say(event.text)

    def complain(self, text: str) -> None:
        self.say(text)

    def show(self, snapshot: Snapshot) -> None:
        size = terminal_size(sys.stderr)
        # A character in the last column would make some terminals begin another line.
        frame = make_frame(snapshot, size.columns - 1, size.lines - 1, charset=_charset())
        with self._lock:
            if snapshot.state == WAITING and self._coloured:
                frame = [f"{_YELLOW}{line}{_PLAIN}" for line in frame]
            self._frame = frame
            self._write(f"\r{self._drawn()}")

    def close(self) -> None:
        with self._lock:
            if self._frame:
                self._frame = []
                self._write(f"\r{_CLEAR_BELOW}")

    def _drawn(self) -> str:
        if not self._frame:
            return ""
        up = f"\x1b[{len(self._frame) - 1}A" if len(self._frame) > 1 else ""
        return "\n".join(f"{_CLEAR_LINE}{line}" for line in self._frame) + f"{_CLEAR_BELOW}\r{up}"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def make_frame(snapshot: Snapshot, columns: int, rows: int, *, charset: str = Bar.UTF) -> list[str]:
    """The lines to be shown: none wider than `columns`, not more than `rows`, the most important first."""
    if snapshot.state == VERIFYING:
        done, shards = snapshot.verified_shards, snapshot.finished_shards
        lines = [_bar_line("verify", done, shards, [f"{done:,} of {shards:,} shards"], columns, charset)]
        lines.append(clip(f"{'':<{_NAME_COLUMNS}} {describe_machine(snapshot)}", columns))
        return lines[:rows]
    lines = [_total_line(snapshot, columns, charset)]
    if snapshot.state == WAITING:
        reason = printable(snapshot.reason).replace("\n", " ")
        waits = wrap(reason, columns, hang=2, break_words=True)
        room = max(1, rows - 1)
        if len(waits) > room:
            waits = [*waits[: room - 1], waits[room - 1] + " …"]
        return [clip(line, columns) for line in [*lines, *waits]][:rows]
    return [*lines, _shard_line(snapshot, columns, charset)][:rows]


def _total_line(snapshot: Snapshot, columns: int, charset: str) -> str:
    tokens = describe_tokens(snapshot)
    speed = f", {show_count(snapshot.tokens_per_second)}/s" if snapshot.tokens_per_second else ""
    left = f", {show_seconds(snapshot.seconds_left)} left" if snapshot.seconds_left is not None else ""
    if snapshot.state == WAITING:
        speed, left = "", ", waiting"
    texts = [f"{tokens} tokens{speed}{left}", f"{tokens} tokens{left}", f"{tokens}{left}", f"{tokens} tokens"]
    return _bar_line("total", snapshot.tokens, snapshot.expected_tokens, texts, columns, charset)


def _shard_line(snapshot: Snapshot, columns: int, charset: str) -> str:
    name = STARTING if snapshot.state == STARTING else f"shard {snapshot.shard}"
    state = describe_state(snapshot)
    texts = [f"{describe_machine(snapshot)}, {state}", state]
    return _bar_line(name, snapshot.shard_tokens, snapshot.shard_size_tokens, texts, columns, charset)


def _bar_line(
    name: str, done: int, whole: int | None, texts: Sequence[str], columns: int, charset: str
) -> str:
    """A name, a bar and the longest of the texts that leaves room for it."""
    begin = f"{name:<{_NAME_COLUMNS}} "
    if not whole:
        return clip(begin + texts[0], columns)
    share = min(1.0, done / whole)
    begin += f"{100 * share:3.0f}%"
    for least in _BAR_COLUMNS:
        for text in texts:
            length = columns - len(f"{begin}|| {text}")
            if length >= least > 0:
                return f"{begin}|{Bar(share, length, charset)}| {text}"
            if least == 0 and len(f"{begin} {text}") <= columns:
                return f"{begin} {text}"
    return clip(f"{begin} {texts[-1]}", columns)


def _charset() -> str:
    """What bars are made of, where standard error can show it."""
    try:
        Bar.UTF.encode(sys.stderr.encoding)
    except UnicodeEncodeError:
        return str(Bar.ASCII)
    return str(Bar.UTF)
