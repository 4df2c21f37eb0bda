"""Show a run while it works: not at all, as lines, as JSON, or as two bars in a terminal, for the whole job and for the
current shard:

total      37%|██████████▍                 | 3.71B of 10B tokens, 16.8M/s, 6 min left
shard 37   71%|█████████████████████▍      | 2 workers, 731 MB, encoding

In the first pass of a shuffle, which has no shard yet, the second bar is for the pass, and its text names it. While the
run waits, the reason replaces the second bar, on as many lines as it needs. The output of a notebook's cell can't be
redrawn, so it gets lines.

Results and errors are printed by `print_result` and `print_error`. The monitor calls `show` once a second, from its own
thread; `say`, `tell` and `warn` may be called from any.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

from fineweb_shards.events import Event, Observer
from fineweb_shards.system import terminal
from fineweb_shards.system.terminal import shown_on, terminal_size
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.run_files import Snapshot, State

_LINE_EVERY_SECONDS = 60.0
_NAME_COLUMNS = 9
_LEAST_BAR_COLUMNS = 5
_LONGEST_LOCK_SECONDS = 0.5


def choose_screen(*, quiet: bool, as_json: bool, for_library: bool = False) -> Screen:
    """Return the screen for these flags; without any, it depends on whether standard error is a terminal."""
    if as_json:
        return JsonScreen(1.0) if for_library else JsonScreen()
    if quiet:
        return Screen()
    # In a pseudo-terminal of a notebook or a CI service, lines can't be redrawn.
    is_dumb, is_ci = os.environ.get("TERM") == "dumb", os.environ.get("CI", "").lower() not in ("", "0", "false")
    can_redraw = sys.stderr.isatty() and not is_dumb and not is_ci and not terminal.in_notebook()
    return BarScreen() if can_redraw else LineScreen()


class Screen:
    """Shows nothing but warnings (--quiet). Subclasses override what they show."""

    shows_waits = True  # so that waits need no loud events; --quiet hides them anyway

    def say(self, text: str) -> None:
        """Show a line, such as the closing lines of a run."""

    def tell(self, event: Event) -> None:
        self.say(event.text)

    def warn(self, text: str) -> None:  # even with --quiet
        print_error(text)

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state of the run."""

    def say_stopping(self) -> None:
        """Acknowledge Ctrl-C, before the run ends. Called by a signal handler."""
        self.say("stopping …")

    def close(self, last: Snapshot) -> None:
        """Erase what is redrawn in place, so that ordinary output can follow. `last` is the run's last state."""

    def wipe_sequence(self) -> str:
        """Return the characters that erase this screen, for a signal handler, which can't call `close`."""
        return ""


class LineScreen(Screen):
    """Prints a line per minute and one for each event to standard error, without control characters."""

    shows_waits = False

    def __init__(self) -> None:
        self._next_line = time.monotonic() + _LINE_EVERY_SECONDS

    def say(self, text: str) -> None:
        print_error(text)

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self._next_line:
            self._next_line += _LINE_EVERY_SECONDS
            self.say(f"{time.strftime('%H:%M')} {describe(snapshot)}")


class JsonScreen(Screen):
    """Prints JSON objects to standard output, one per line (--json); docs/reference.md lists their fields."""

    def __init__(self, every_seconds: float = 5.0) -> None:
        self._every_seconds = every_seconds
        self._next_object = 0.0

    def say(self, text: str) -> None:
        self.tell(Event("note", text))

    def tell(self, event: Event) -> None:
        put_json({"event": "message", "kind": event.kind, "text": event.text})

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self._next_object:
            self._next_object = time.monotonic() + self._every_seconds
            self.close(snapshot)

    def close(self, last: Snapshot) -> None:
        put_json({"event": "progress", **dataclasses.asdict(last)})


class BarScreen(Screen):
    """Shows a few lines at the bottom of the terminal, which are redrawn in place.

    The cursor rests below them, so that the next output, even that of the shell after a kill, begins on an empty line.
    Every change is one write, so that no half-drawn state is visible.
    """

    def __init__(self) -> None:
        self._frame: list[str] = []
        self._waiting = False
        self._stopping = False
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        with self._lock:
            self._write(f"{self._wipe()}{shown_on(sys.stderr, text)}\n{self._draw()}")

    warn = say

    def show(self, snapshot: Snapshot) -> None:
        size = terminal_size(sys.stderr)
        # A character in the last column would make some terminals begin another line.
        frame = make_frame(snapshot, size.columns - 1, size.lines - 1)
        with self._lock:
            if self._stopping:
                return
            wipe = self._wipe()
            self._frame, self._waiting = frame, snapshot.state == State.WAITING
            self._write(wipe + self._draw())

    def say_stopping(self) -> None:
        """From now on show it instead of the bars. A thread that is drawing gets only a moment to finish."""
        is_locked = self._lock.acquire(timeout=_LONGEST_LOCK_SECONDS)
        self._stopping, wipe = True, self._wipe()
        self._frame = []
        self._write(f"{wipe}stopping …\n")
        if is_locked:
            self._lock.release()

    def close(self, last: Snapshot) -> None:
        with self._lock:
            wipe, self._frame = self._wipe(), []
            self._write(wipe)

    def wipe_sequence(self) -> str:
        self._lock.acquire(timeout=_LONGEST_LOCK_SECONDS)
        return self._wipe()

    def _wipe(self) -> str:
        """Return the characters that erase the current lines, which take more rows in a terminal made narrower."""
        columns = terminal_size(sys.stderr).columns
        rows = sum(max(1, -(-terminal.cells(line) // columns)) for line in self._frame)
        return f"\r\x1b[{rows}A\x1b[J" if rows else ""

    def _draw(self) -> str:
        begin, end = ("\x1b[33m", "\x1b[0m") if self._waiting and not os.environ.get("NO_COLOR") else ("", "")  # yellow
        return "".join(f"{begin}{line}{end}\n" for line in self._frame)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def make_frame(snapshot: Snapshot, columns: int, rows: int) -> list[str]:
    """Return the lines to show: none wider than `columns`, at most `rows`, the most important first."""
    state, tokens, machine = str(snapshot.state), describe_tokens(snapshot), describe_machine(snapshot)
    if state == State.WAITING:
        total = _bar_line("total", snapshot.share, f"{tokens} tokens, waiting", columns)
        reason = terminal.printable(snapshot.reason).replace("\n", " ")
        waits = terminal.wrap(reason, columns, hang=2, break_words=True)
        return [total, *(terminal.clip(line, columns) for line in waits)][:rows]
    speed = f", {show_count(snapshot.tokens_per_second)}/s" if snapshot.tokens_per_second else ""
    left = f", {show_seconds(snapshot.seconds_left)} left" if snapshot.seconds_left is not None else ""
    total = _bar_line("total", snapshot.share, f"{tokens} tokens{speed}{left}", columns)
    name, done, whole = f"shard {snapshot.shard}", snapshot.shard_tokens, snapshot.shard_size_tokens
    if snapshot.pass_number == 1:
        name, done, whole = "piles", snapshot.tokens, snapshot.expected_tokens or 0
    text = f"{machine}, {state}"
    if state == State.STARTING:
        name, text = state, machine
    elif state == State.VERIFYING:
        name, done, whole = "verify", snapshot.verified_shards, snapshot.finished_shards
        text = f"{done:,} of {show_number_of(whole, 'shard')}, {machine}"
    elif state == State.FETCHING and snapshot.fetched_bytes_per_second:
        text += f" {show_bytes(snapshot.fetched_bytes_per_second)}/s"
    if state == State.ENCODING and snapshot.pass_number:  # the second one encodes nothing
        text = f"{machine}, {snapshot.pass_name}"
    elif state == State.FETCHING and snapshot.pass_number:
        text += f", {snapshot.pass_name}"
    return [total, _bar_line(name, done / whole if whole else None, text, columns)][:rows]


def _bar_line(name: str, share: float | None, text: str, columns: int) -> str:
    """Return a name, a bar as wide as the text permits, and the text, cut if necessary; no bar for an unknown share."""
    from tqdm.std import Bar  # here, because loading it takes most commands longer than their work

    begin = f"{name:<{_NAME_COLUMNS}} "
    if share is not None:
        share = min(1.0, share)
        try:
            Bar.UTF.encode(sys.stderr.encoding)
            charset = Bar.UTF
        except UnicodeEncodeError:
            charset = Bar.ASCII
        begin += f"{100 * share:3.0f}%"
        length = max(_LEAST_BAR_COLUMNS, columns - len(f"{begin}|| {text}"))
        begin += f"|{Bar(share, length, charset)}| "
    return terminal.clip(begin + text, columns)


def put_json(values: dict[str, Any]) -> None:
    """Print an object on one line of standard output; in ASCII, which is safe in any terminal."""
    sys.stdout.write(json.dumps({"time": round(time.time(), 1), **values}) + "\n")
    sys.stdout.flush()


def describe(snapshot: Snapshot) -> str:
    if snapshot.state == State.VERIFYING:
        shards = show_number_of(snapshot.finished_shards, "shard")
        return f"verifying: {snapshot.verified_shards:,} of {shards}"
    parts = [f"shard {snapshot.shard}: {describe_tokens(snapshot)} tokens"]
    if snapshot.pass_number:
        share = [f"{100 * snapshot.share:.1f} %"] if snapshot.share is not None else []
        parts = [*share, snapshot.pass_name, f"{describe_tokens(snapshot)} tokens"]
    if snapshot.tokens_per_second:
        parts.append(f"{show_count(snapshot.tokens_per_second)} tokens/s")
    if snapshot.fetched_bytes_per_second:
        parts.append(f"{show_bytes(snapshot.fetched_bytes_per_second)}/s fetched")
    if snapshot.seconds_left is not None:
        parts.append(f"{show_seconds(snapshot.seconds_left)} left")
    if any(part.tokens for part in snapshot.parts):
        parts.append(f"shares {' : '.join(f'{100 * part.share:.1f}' for part in snapshot.parts)} %")
    parts.append(describe_machine(snapshot))
    if snapshot.state == State.WAITING:
        parts.append(snapshot.reason)
    return ", ".join(parts)


def describe_tokens(snapshot: Snapshot) -> str:
    """Return the tokens done and expected, such as `3.71B of about 10B`."""
    if snapshot.expected_tokens is None:
        return show_count(snapshot.tokens)
    about = "" if snapshot.expected_exact else "about "
    return f"{show_count(snapshot.tokens)} of {about}{show_count(snapshot.expected_tokens)}"


def describe_machine(snapshot: Snapshot) -> str:
    """Return workers and memory in use, such as `2 workers, 731 MB` or `3 nodes, 24 workers, 9.1 GB`."""
    workers = show_number_of(snapshot.workers, "worker")
    if snapshot.nodes:
        workers = f"{show_number_of(snapshot.nodes, 'node')}, {workers}"
    return f"{workers}, {show_bytes(snapshot.memory_bytes)}" if snapshot.memory_bytes else workers


class TokensOnScreen:
    """Shows the progress of a subcommand without a monitor. `add` may be called from any thread."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._now: Snapshot | None = None
        self._lock = threading.Lock()

    def begin(self, state: State, expected_tokens: int, tokens: int = 0) -> None:
        """Begin with `tokens` done; in a shuffle count both passes."""
        self._now = Snapshot(state, "", tokens, expected_tokens, resumed_tokens=tokens)

    def add(self, tokens: int) -> None:
        with self._lock:
            assert self._now is not None, "`begin` comes first"
            self._now = dataclasses.replace(self._now, tokens=self._now.tokens + tokens)
            self._screen.show(self._now)

    def __enter__(self) -> TokensOnScreen:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._now is not None:
            last = dataclasses.replace(self._now, state=State.STOPPED, reason=str(error))
            if error is None:
                last = dataclasses.replace(self._now, state=State.COMPLETE, expected_tokens=self._now.tokens)
            self._screen.close(last)


class WaitsOnScreen(Observer):
    """Shows waits and events on a screen, for work outside a run; in a run, watching/progress.py does."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: dict[str, str] = {}  # cause to reason

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
    """Print to standard output, made safe for a terminal, and flush, because an error message may follow."""
    print(shown_on(sys.stdout, "\n".join(lines)), flush=True)


def print_error(line: str) -> None:
    """Print to standard error, made safe for a terminal."""
    print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)
