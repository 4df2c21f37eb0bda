"""In a terminal: a bar for the whole job, and below it one for the current shard.

total     37%|██████████▍                 | 3.71B of 10B tokens, 16.8M/s, 6 min left
shard 37  71%|█████████████████████▍      | 2 workers, 731 MB, encoding
"""

from __future__ import annotations

import os
import shutil
import sys
import threading

from tqdm import tqdm

from fineweb_shards.observer import Event
from fineweb_shards.screen import JsonLines, Lines, Screen, describe_machine, describe_tokens
from fineweb_shards.snapshot import STARTING, VERIFYING, WAITING, Snapshot
from fineweb_shards.terminal import printable
from fineweb_shards.units import show_count, show_number_of, show_seconds

_NAME_COLUMNS = 9
_LEAST_BAR_COLUMNS = 10
_FRAME_COLUMNS = 9  # ` 100%|` and `| ` around the bar
_CLEAR_BELOW = "\r\x1b[J"


def choose_screen(*, quiet: bool, as_json: bool) -> Screen:
    """What fits the flags and what standard error is."""
    if as_json:
        return JsonLines()
    if quiet:
        return Screen()
    return Bars() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


class Bars(Screen):
    """Two tqdm bars with our own figures: tqdm's know nothing of waits, nor of a total that is corrected."""

    def __init__(self) -> None:
        self._total: tqdm[None] | None = None
        self._shard: tqdm[None] | None = None
        self._columns = 0
        self._coloured = not os.environ.get("NO_COLOR")
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        with self._lock:
            tqdm.write(printable(text), file=sys.stderr)
            self._rest()

    def tell(self, event: Event) -> None:
        self.say(event.text)

    def complain(self, text: str) -> None:
        self.say(text)

    def show(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._total is None or self._shard is None:
                self._total, self._shard = _make_bar(0), _make_bar(1)
            columns = shutil.get_terminal_size().columns
            if columns != self._columns:
                # A narrower terminal has broken the old lines in two. The cursor rests at the beginning
                # of the first, so everything from there on can be wiped.
                self._columns = columns
                sys.stderr.write(_CLEAR_BELOW)
                for bar in (self._total, self._shard):  # tqdm would pad to the old width
                    bar.sp = bar.status_printer(sys.stderr)
            if snapshot.state == VERIFYING:
                done, shards = snapshot.verified_shards, snapshot.finished_shards
                self._draw(
                    self._total, "verify", done, shards, f"{done:,} of {show_number_of(shards, 'shard')}"
                )
                self._draw(self._shard, "", 0, None, describe_machine(snapshot))
            else:
                self._draw_run(self._total, self._shard, snapshot)
            self._rest()

    def close(self) -> None:
        with self._lock:
            for bar in (self._shard, self._total):
                if bar is not None:
                    bar.close()
            if self._total is not None:
                sys.stderr.write(_CLEAR_BELOW)
                sys.stderr.flush()
            self._total = self._shard = None

    def _draw_run(self, total: tqdm[None], shard: tqdm[None], snapshot: Snapshot) -> None:
        colour = "yellow" if snapshot.state == WAITING and self._coloured else None
        total.colour = shard.colour = colour
        figures = [f"{describe_tokens(snapshot)} tokens"]
        if snapshot.tokens_per_second:
            figures.append(f"{show_count(snapshot.tokens_per_second)}/s")
        if snapshot.seconds_left is not None:
            figures.append(f"{show_seconds(snapshot.seconds_left)} left")
        self._draw(total, "total", snapshot.tokens, snapshot.expected_tokens, ", ".join(figures))
        name = STARTING if snapshot.state == STARTING else f"shard {snapshot.shard}"
        # A wait is all that matters then, and it needs the room.
        waiting = snapshot.state == WAITING
        text = snapshot.reason if waiting else f"{describe_machine(snapshot)}, {snapshot.state}"
        self._draw(shard, name, snapshot.shard_tokens, snapshot.shard_size_tokens, text)

    def _draw(self, bar: tqdm[None], name: str, done: int, whole: int | None, text: str) -> None:
        room = self._columns - _NAME_COLUMNS - _FRAME_COLUMNS - (_LEAST_BAR_COLUMNS if whole else 0)
        text = printable(text).replace("\n", " ")
        if len(text) > room:
            text = text[: max(0, room - 1)] + "…"
        text = text.replace("{", "{{").replace("}", "}}")  # it becomes a part of a format
        frame = "{percentage:3.0f}%|{bar}| " if whole else ""
        bar.bar_format = f"{name:<{_NAME_COLUMNS}} {frame}{text}"
        bar.n, bar.total = done, whole
        bar.refresh()

    def _rest(self) -> None:
        sys.stderr.write("\r")
        sys.stderr.flush()


def _make_bar(position: int) -> tqdm[None]:
    # The delay keeps tqdm from drawing before there is anything to draw.
    return tqdm(
        position=position, leave=False, dynamic_ncols=True, file=sys.stderr, bar_format=" ", delay=1e-9
    )
