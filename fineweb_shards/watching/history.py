"""Record the runs of a folder in `.fineweb-shards/history.json`: speed and memory over time, waits, faults.

Its size is bounded: when there are too many points every second one is removed, so that three days take no
more space than an hour. A resume adds to the same history under another run number. It is for the report
only, never a checkpoint. For each run it has a record: when it began and ended, how, what it made, what it
waited for.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fineweb_shards.events import Event
from fineweb_shards.system.durable import write_quickly
from fineweb_shards.system.json_values import check_moment, expect, get, make, parse_object
from fineweb_shards.system.own_files import WORK_FOLDER, read_file
from fineweb_shards.system.terminal import safe_text
from fineweb_shards.units import show_seconds

FILE_NAME = "history.json"
MAXIMUM_POINTS = 1000
MAXIMUM_MARKS = 400
MAXIMUM_RUNS = 200
_FIRST_INTERVAL_SECONDS = 1.0
_MARK_CHARACTERS = 300
WAIT = "wait"
# The kinds of events that the charts of the report show.
_FAULTS = ("worker", "quarantine", "memory", "note")
RUN_COMPLETE = "complete"
_PHRASES = {"network": "the network", "disk": "the disk"}


@dataclass(frozen=True, slots=True)
class Waited:
    """The number and the total length of a run's waits for one cause."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of `build`, from its start or resume to its end. Times are seconds since 1970."""

    number: int
    begin: float
    end: float  # of a run that was killed: its last point in the history
    first_tokens: int  # finished before it began
    last_tokens: int
    budget_bytes: int = 0  # of memory
    fetched_bytes: int = 0  # over the network
    stood_still_seconds: float = 0.0  # in which it waited and no token was made
    waited: Mapping[str, Waited] = field(default_factory=dict)  # by cause
    ending: str = ""  # how it ended; empty if it was killed

    @property
    def new_tokens(self) -> int:
        return max(0, self.last_tokens - self.first_tokens)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def work_seconds(self) -> float:
        """The duration without the time in which it only waited."""
        return max(0.0, self.seconds - self.stood_still_seconds)

    def describe_waits(self) -> str:
        """Return a text such as `12 min for the network, 2 times`; empty if it never waited."""
        return "; ".join(
            f"{show_seconds(waited.seconds)} for {_PHRASES.get(cause, cause)}, {_times(waited.count)}"
            for cause, waited in self.waited.items()
            if waited.count
        )


@dataclass(frozen=True, slots=True)
class Point:
    """Tokens and memory of a run at one moment."""

    time: float  # seconds since 1970
    run: int
    tokens: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault at one moment, or a wait with an end (None: it has not ended)."""

    time: float
    kind: str  # the event's kind, or WAIT
    text: str
    cause: str = ""  # of a wait
    end: float | None = None


class History:
    """Points and marks of all runs in a folder. May be used from any thread."""

    def __init__(
        self,
        points: list[Point] | None = None,
        marks: list[Mark] | None = None,
        interval_seconds: float = _FIRST_INTERVAL_SECONDS,
        runs: list[RunRecord] | None = None,
    ) -> None:
        self._points = points or []
        self._marks = marks or []
        self._runs = runs or []
        self._interval_seconds = interval_seconds
        self._run = self._points[-1].run if self._points else 0
        self._lock = threading.Lock()

    @property
    def points(self) -> list[Point]:
        with self._lock:
            return list(self._points)

    @property
    def marks(self) -> list[Mark]:
        with self._lock:
            return list(self._marks)

    @property
    def runs(self) -> list[RunRecord]:
        with self._lock:
            return list(self._runs)

    def begin_run(self, tokens: int = 0, budget_bytes: int = 0) -> None:
        """Start a new run. A wait that a killed run has left open is closed at that run's last point."""
        now = time.time()
        with self._lock:
            self._close_waits(self._points[-1].time if self._points else 0.0)
            self._run = max([self._run, *(run.number for run in self._runs)]) + 1
            begun = RunRecord(self._run, now, now, tokens, tokens, budget_bytes)
            self._runs = [*self._runs, begun][-MAXIMUM_RUNS:]

    def end_run(self, ending: str) -> None:
        """Record that the run has ended, and how."""
        now = time.time()
        with self._lock:
            self._close_waits(now)
            self._update_run(end=now, ending=safe_text(ending, _MARK_CHARACTERS))

    def add(
        self, tokens: int, memory_bytes: int, *, fetched_bytes: int = 0, stood_still_seconds: float = 0.0
    ) -> None:
        """Record the state of the run now; it becomes a point if enough time has passed since the last."""
        now = time.time()
        with self._lock:
            self._update_run(
                end=now, last_tokens=tokens, fetched_bytes=fetched_bytes,
                stood_still_seconds=stood_still_seconds,
            )  # fmt: skip
            last = self._points[-1] if self._points else None
            # Below 0 if the clock was set back: points must not stop until it catches up.
            if last and last.run == self._run and 0 <= now - last.time < self._interval_seconds * 0.95:
                return
            self._points.append(Point(now, self._run, tokens, memory_bytes))
            if len(self._points) > MAXIMUM_POINTS:
                self._points = [*self._points[:-1:2], self._points[-1]]
                self._interval_seconds *= 2

    def note(self, event: Event) -> None:
        """Record an event if it is a fault; all others are only in the log."""
        if event.kind in _FAULTS:
            self._mark(Mark(time.time(), event.kind, safe_text(event.text, _MARK_CHARACTERS)))

    def begin_wait(self, cause: str, reason: str) -> None:
        self._mark(Mark(time.time(), WAIT, safe_text(reason, _MARK_CHARACTERS), cause))
        with self._lock:
            self._count_wait(cause, 1, 0.0)

    def end_wait(self, cause: str) -> None:
        """Record that the wait for `cause` is over."""
        with self._lock:
            self._close_waits(time.time(), cause)

    def _close_waits(self, end: float, cause: str | None = None) -> None:
        """End the open waits at this time: those for `cause`, or all if it is None."""
        for place, mark in enumerate(self._marks):
            if mark.kind == WAIT and mark.end is None and cause in (None, mark.cause):
                self._marks[place] = replace(mark, end=max(end, mark.time))
                self._count_wait(mark.cause, 0, max(0.0, end - mark.time))

    def _count_wait(self, cause: str, count: int, seconds: float) -> None:
        if self._runs:
            known = self._runs[-1].waited
            before = known.get(cause, Waited())
            now = Waited(before.count + count, before.seconds + seconds)
            self._update_run(waited={**known, cause: now})

    def _update_run(self, **changes: Any) -> None:
        if self._runs:
            self._runs[-1] = replace(self._runs[-1], **changes)

    def _mark(self, mark: Mark) -> None:
        with self._lock:
            self._marks = [*self._marks, mark][-MAXIMUM_MARKS:]

    def save(self, folder: Path) -> None:
        with self._lock:
            data = {
                "interval_seconds": self._interval_seconds,
                "points": [[round(p.time, 1), p.run, p.tokens, p.memory_bytes] for p in self._points],
                "marks": [asdict(mark) for mark in self._marks],
                "runs": [asdict(run) for run in self._runs],
            }
        write_quickly(folder / WORK_FOLDER / FILE_NAME, json.dumps(data).encode())


def load_history(folder: Path) -> History:
    """Read the folder's history; an empty one if there is none, or none that can be read."""
    try:
        data = parse_object(read_file(folder / WORK_FOLDER / FILE_NAME))
        points = [_make_point(row) for row in get(data, "points", list)]
        marks = [make(Mark, mark) for mark in get(data, "marks", list)]
        runs = [
            make(RunRecord, run) for run in expect("runs", data.get("runs", []), list)
        ]  # not in older files
        interval_seconds = get(data, "interval_seconds", float)
        spans = [*((mark.time, mark.end or 0.0) for mark in marks), *((run.begin, run.end) for run in runs)]
        for moment in (moment for span in spans for moment in span):
            check_moment(moment)
    except (OSError, ValueError):
        return History()
    if len(points) > MAXIMUM_POINTS or interval_seconds < _FIRST_INTERVAL_SECONDS:
        return History()
    return History(points, marks, interval_seconds, runs)


def _make_point(row: Any) -> Point:
    names = ("time", "run", "tokens", "memory_bytes")
    point = make(Point, dict(zip(names, expect("a point", row, list), strict=True)))
    check_moment(point.time)
    if min(point.run, point.tokens, point.memory_bytes) < 0:
        raise ValueError("a negative figure")
    return point


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
