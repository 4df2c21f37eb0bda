"""The files in which a run describes itself, in its work folder. None is a checkpoint: no run depends on them.

- `log.txt` has a line per event with its time, for people to read the next morning. A full log becomes `log.old.txt`,
  replacing the previous one.
- `heartbeat.json` is the state of the run, for `status` and the report. It is replaced every few seconds, without
  fsync: after a crash it may be old, but the folder's lock shows that no run is active. The screen shows the same
  `Snapshot`.
- `history.json` has all runs of the folder, for the report: waits, faults, and a record of each run: when it began,
  when and how it ended, what it made, what it waited for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from fineweb_shards.events import Event
from fineweb_shards.system.durable import write_quickly
from fineweb_shards.system.json_values import check_moment, expect, get, make, parse_object
from fineweb_shards.system.own_files import WORK_FOLDER, ForeignFileError, open_descriptor, open_own, read_file
from fineweb_shards.system.terminal import printable, safe_text
from fineweb_shards.units import show_seconds

LOG_NAME = "log.txt"
MAXIMUM_LOG_BYTES = 2 * 2**20
_LINE_CHARACTERS = 2000
_KEPT_LINES = 1000  # in memory, while the disk is full

HEARTBEAT_NAME = "heartbeat.json"
_HEARTBEAT_FORMAT = 1
_HEARTBEAT_BYTES = 8192  # padded with spaces, so that it can be overwritten in place (see `Heartbeat.save`)

HISTORY_NAME = "history.json"
MAXIMUM_MARKS = 400
MAXIMUM_RUNS = 200
_MARK_CHARACTERS = 300
WAIT = "wait"

# The cost of a token in the second pass of a shuffle, if it is 1 in the first: 0.29 of the processor time with
# gigatoken. After a first pass that waits for a network or a slow engine it is less: about 6 ns with two workers.
SECOND_PASS_COST, _SECOND_PASS_SECONDS = 0.35, 15e-9
PASS_NAMES = ("", "pass 1 of 2: piles", "pass 2 of 2: shards")  # of a shuffle


def second_pass_seconds(tokens: int, first_per_second: float) -> float:
    """Return how long the second pass of a shuffle takes for this many tokens, given the speed of the first."""
    return tokens * min(SECOND_PASS_COST / first_per_second, _SECOND_PASS_SECONDS)


class EventLog:
    """The log of one output folder. May be used from any thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WORK_FOLDER / LOG_NAME
        self._unwritten: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Append a line. If that fails, the next call writes it too."""
        text = printable(event.text).replace("\n", " | ")
        if len(text) > _LINE_CHARACTERS:
            text = text[: _LINE_CHARACTERS - 1] + "…"
        with self._lock:
            self._unwritten.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {event.kind:<10} {text}\n")
            with contextlib.suppress(OSError):
                self._flush()

    def _flush(self) -> None:
        data = "".join(self._unwritten).encode("utf-8", "replace")
        try:
            descriptor = self._open()
        except ForeignFileError as error:
            if error.errno != errno.EMLINK:
                raise
            descriptor = self._open_next()  # it has another hard link, which must not change
        try:
            if os.fstat(descriptor).st_size + len(data) > MAXIMUM_LOG_BYTES:
                full, descriptor = descriptor, self._open_next()
                os.close(full)
            written = os.write(descriptor, data)
            if written < len(data):  # the disk is full: remove the part, or it would appear twice
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                return
        finally:
            os.close(descriptor)
        self._unwritten.clear()

    def _open(self) -> int:
        return open_descriptor(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _open_next(self) -> int:
        self._path.replace(self._path.with_name("log.old.txt"))
        return self._open()


def last_lines(folder: Path, count: int) -> list[str]:
    """Read the last lines of the log; none if there is no log."""
    try:
        with open_own(folder / WORK_FOLDER / LOG_NAME, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - count * (_LINE_CHARACTERS + 40)))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


class State(StrEnum):
    STARTING = "starting"
    FETCHING = "fetching"  # and encoding: the input is on the hub
    ENCODING = "encoding"
    WAITING = "waiting"  # for the network, memory or the disk, as `reason` says
    COPYING = "copying"  # in an export
    VERIFYING = "verifying"
    COMPLETE = "complete"
    STOPPED = "stopped"  # by an error or a signal, as `reason` says


@dataclass(frozen=True, slots=True)
class PartShare:
    """How much of a mix comes from one of its parts, without the files of --val-input."""

    label: str
    tokens: int  # EOTs included
    documents: int
    share: float  # of the tokens, from 0 to 1
    requested_share: float  # by the weights
    epoch: int  # the current one, from 1
    epochs: int  # after which the part is exhausted
    exhausted: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is shown about a run. Tokens are of all runs in the folder, in a shuffle of the current pass."""

    state: str  # a State, perhaps of another version
    reason: str
    tokens: int = 0
    expected_tokens: int | None = None
    expected_exact: bool = False
    resumed_tokens: int = 0  # finished before this run began
    shard: int = 0  # the index of the shard being written
    shard_tokens: int = 0  # in it so far
    shard_size_tokens: int = 1  # in a full shard
    tokens_per_second: float | None = None  # over the last minutes of work
    seconds_left: float | None = None  # None if unknown, as during a wait
    elapsed_seconds: float = 0.0  # of this run
    workers: int = 0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    finished_shards: int = 0
    verified_shards: int = 0
    fetched_bytes: int = 0  # over the network, in this run
    fetched_bytes_per_second: float | None = None  # over the last minutes of work
    waited_seconds: float = 0.0  # of this run, in which no token was made
    nodes: int = 0  # of a cluster; 0: all workers are on this machine
    parts: tuple[PartShare, ...] = ()  # of a mix
    pass_number: int = 0  # of a shuffle, 1 or 2; 0: there is only one
    other_pass_tokens: int = 0  # done in the other pass: all of the first, usually none of the second

    @property
    def share(self) -> float | None:
        """The share of the work done, from 0 to 1, in both passes of a shuffle; None if unknown."""
        if not self.expected_tokens:
            return None
        if not self.pass_number:
            return self.tokens / self.expected_tokens
        first, second = self.tokens, self.other_pass_tokens
        if self.pass_number > 1:
            first, second = second, first
        return min(1.0, (first + SECOND_PASS_COST * second) / ((1 + SECOND_PASS_COST) * self.expected_tokens))

    @property
    def processed_tokens(self) -> int:
        return self.tokens + self.other_pass_tokens

    @property
    def pass_name(self) -> str:
        """The name of the current pass of a shuffle; else empty."""
        return PASS_NAMES[self.pass_number]


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a run was started, and so how to start it again."""

    command: str
    folder: str  # the current folder when it was typed
    process: int
    started: float  # seconds since 1970
    machine: str = ""  # its name; unknown in heartbeats of older versions


@dataclass(frozen=True, slots=True)
class Heartbeat:
    written: float  # seconds since 1970
    invocation: Invocation
    snapshot: Snapshot
    exit_code: int | None = None  # None while it runs, and after it was killed

    def to_json(self) -> dict[str, Any]:
        return {"format": _HEARTBEAT_FORMAT, **asdict(self)}

    def save(self, folder: Path) -> None:
        """Write it to the output folder; may raise OSError. On a full disk, overwrite the old file in place, which
        needs no space, so that `status` can show the full disk."""
        path = folder / WORK_FOLDER / HEARTBEAT_NAME
        data = json.dumps(self.to_json(), indent=1).encode().ljust(_HEARTBEAT_BYTES)
        try:
            write_quickly(path, data)
        except OSError:
            if not path.is_file() or path.stat().st_size != len(data):
                raise
            with open_own(path, "r+b", buffering=0) as file:
                file.write(data)


def current_invocation(command: str) -> Invocation:
    return Invocation(command, os.getcwd(), os.getpid(), time.time(), socket.gethostname())


def load_heartbeat(folder: Path) -> Heartbeat | None:
    """Read the folder's last heartbeat; None without one that this version can read."""
    try:
        data = parse_object(read_file(folder / WORK_FOLDER / HEARTBEAT_NAME))
        if data.pop("format", None) != _HEARTBEAT_FORMAT:
            return None
        heartbeat = make(Heartbeat, data)
        # `status` divides, and turns seconds into dates.
        for moment in (0.0, heartbeat.snapshot.seconds_left or 0.0):
            check_moment(heartbeat.written + moment)
        check_moment(heartbeat.invocation.started)
        os.fsencode(heartbeat.invocation.folder)
    except (OSError, ValueError):
        return None
    is_wrong = heartbeat.snapshot.shard_size_tokens < 1 or "\0" in heartbeat.invocation.folder
    return None if is_wrong or not 0 <= heartbeat.snapshot.pass_number < len(PASS_NAMES) else heartbeat


@dataclass(frozen=True, slots=True)
class Waited:
    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of `build`, from its start or resume to its end. Times are seconds since 1970."""

    number: int
    begin: float
    end: float  # of a killed run: when it was last recorded
    first_tokens: int  # finished before it began; in a shuffle those of both passes
    last_tokens: int
    fetched_bytes: int = 0  # over the network
    stood_still_seconds: float = 0.0  # in which it waited and no token was made
    waited: Mapping[str, Waited] = field(default_factory=dict)  # by cause
    ending: str = ""  # State.COMPLETE or a sentence; empty if it was killed

    @property
    def new_tokens(self) -> int:
        return max(0, self.last_tokens - self.first_tokens)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def work_seconds(self) -> float:
        """The duration without the time in which the run only waited."""
        return max(0.0, self.seconds - self.stood_still_seconds)

    def describe_waits(self) -> str:
        """Return a text such as `12 min for the network, 2 times`; empty if it never waited."""
        texts = []
        for cause, waited in self.waited.items():
            if waited.count:
                what = f"the {cause}" if cause in ("network", "disk") else cause
                times = "once" if waited.count == 1 else f"{waited.count:,} times"
                texts.append(f"{show_seconds(waited.seconds)} for {what}, {times}")
        return "; ".join(texts)


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault at one moment, or a wait with its end (None: not over yet)."""

    time: float
    kind: str  # the event's kind, or WAIT
    text: str
    cause: str = ""  # of a wait
    end: float | None = None


@dataclass(eq=False)
class History:
    """Marks and records of all runs in a folder. May be used from any thread: lists are replaced, never changed."""

    marks: list[Mark] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def begin_run(self, tokens: int = 0) -> None:
        """Start a new run. Waits that a killed run left open end when that run was last recorded."""
        now = time.time()
        with self._lock:
            self._close_waits(self.runs[-1].end if self.runs else 0.0)
            number = max((run.number for run in self.runs), default=0) + 1
            self.runs = [*self.runs, RunRecord(number, now, now, tokens, tokens)][-MAXIMUM_RUNS:]

    def end_run(self, ending: str) -> None:
        now = time.time()
        with self._lock:
            self._close_waits(now)
            self._update_run(end=now, ending=safe_text(ending, _MARK_CHARACTERS))

    def update(self, snapshot: Snapshot) -> None:
        tokens, waited = snapshot.processed_tokens, snapshot.waited_seconds
        with self._lock:
            self._update_run(
                end=time.time(), last_tokens=tokens, fetched_bytes=snapshot.fetched_bytes, stood_still_seconds=waited
            )

    def note(self, event: Event) -> None:
        """Record an event if it is a fault, for the report; the log has all others."""
        if event.kind in ("worker", "quarantine", "memory", "note"):
            self._mark(event.kind, event.text)

    def begin_wait(self, cause: str, reason: str) -> None:
        self._mark(WAIT, reason, cause)

    def _mark(self, kind: str, text: str, cause: str = "") -> None:
        mark = Mark(time.time(), kind, safe_text(text, _MARK_CHARACTERS), cause)
        with self._lock:
            self.marks = [*self.marks, mark][-MAXIMUM_MARKS:]
            if cause:
                self._count_wait(cause, 1, 0.0)

    def end_wait(self, cause: str) -> None:
        with self._lock:
            self._close_waits(time.time(), cause)

    def _close_waits(self, end: float, cause: str | None = None) -> None:
        """End the open waits for `cause`, or all if it is None, at time `end`."""
        marks = list(self.marks)
        for place, mark in enumerate(marks):
            if mark.kind == WAIT and mark.end is None and cause in (None, mark.cause):
                marks[place] = replace(mark, end=max(end, mark.time))
                self._count_wait(mark.cause, 0, max(0.0, end - mark.time))
        self.marks = marks

    def _count_wait(self, cause: str, count: int, seconds: float) -> None:
        if self.runs:
            known = self.runs[-1].waited
            before = known.get(cause, Waited())
            self._update_run(waited={**known, cause: Waited(before.count + count, before.seconds + seconds)})

    def _update_run(self, **changes: Any) -> None:
        if self.runs:
            self.runs = [*self.runs[:-1], replace(self.runs[-1], **changes)]

    def save(self, folder: Path) -> None:
        with self._lock:
            data = {"marks": [asdict(mark) for mark in self.marks], "runs": [asdict(run) for run in self.runs]}
        write_quickly(folder / WORK_FOLDER / HISTORY_NAME, json.dumps(data).encode())


def load_history(folder: Path) -> History:
    """Read the folder's history; an empty one without a readable one."""
    try:
        data = parse_object(read_file(folder / WORK_FOLDER / HISTORY_NAME))
        marks = [make(Mark, mark) for mark in get(data, "marks", list)]
        runs = []
        for values in expect("runs", data.get("runs", []), list):  # the oldest files have none
            expect("a run", values, dict).pop("budget_bytes", None)  # up to version 1.0
            runs.append(make(RunRecord, values))
        spans = [*((mark.time, mark.end or 0.0) for mark in marks), *((run.begin, run.end) for run in runs)]
        for span in spans:
            for moment in span:
                check_moment(moment)
    except (OSError, ValueError):
        return History()
    return History(marks, runs)
