"""Watch a run once a second, from a thread: update the screen, and the files for `status`.

It never disturbs the run: a write that fails, for example on a full disk, is left out and tried again the
next time it is due. The report, and the statistics in it, have a thread of their own, because both read
shards: a bucket, or a disk, that says nothing keeps that thread waiting, but neither the screen nor the
heartbeat.

A monitor needs workers and files. Before there are any, while the hub or a bucket is asked for its files, a
StartObserver records the waits: the log and `status` would know nothing of an outage, which may last for an
hour.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.errors import Interrupted, ShardError, exit_code_of
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.reading.statistics import FolderStatistics, complete_folder_statistics
from fineweb_shards.store.store import OutputSpec
from fineweb_shards.watching.heartbeat import (
    COMPLETE,
    ENCODING,
    FETCHING,
    STARTING,
    STOPPED,
    VERIFYING,
    WAITING,
    WORKING,
    Heartbeat,
    Invocation,
    Snapshot,
)
from fineweb_shards.watching.history import RUN_COMPLETE, RunRecord
from fineweb_shards.watching.log import EventLog
from fineweb_shards.watching.progress import Progress, Speedometer, seconds_left

LOOK_EVERY_SECONDS = 1.0
HEARTBEAT_EVERY_SECONDS = 3.0
HISTORY_EVERY_SECONDS = 15.0
_LONGEST_JOIN_SECONDS = 3.0
REPORT_EVERY_SECONDS = 60.0
_FIRST_REPORT_SECONDS = 5.0  # not while the workers start
_LONGEST_JOIN_AFTER_ERROR_SECONDS = 1.0
_LONGEST_LAST_SECONDS = 3.0  # for an answer, when the run ends with an error


class Monitor:
    """Watches one run. A context manager around the whole run, so that it also records how the run ends."""

    def __init__(
        self,
        output: OutputSpec,
        progress: Progress,
        executor: Executor,
        invocation: Invocation,
        page: ReportFunctions,
        *,
        is_remote: bool = False,
    ) -> None:
        self._output = output
        self._page = page
        self._reporter = Reporter(output, progress, page, self._attempt)
        self._is_remote = is_remote
        self._progress = progress
        self._executor = executor
        self._invocation = invocation
        self._speed = Speedometer()  # in tokens
        self._fetch_speed = Speedometer()  # in bytes
        self._began = self._last_look = time.monotonic()
        self._last_tokens = progress.tokens
        self._next_time: dict[str, float] = {}
        self._reported_failures: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        # At once, because the heartbeat of the previous run must not be taken for this one's.
        try:
            self._attempt(lambda: self._write_heartbeat(self._take_snapshot(STARTING, "")))
            self._thread.start()
            self._reporter.thread.start()
        except BaseException as error:  # interrupted: that is how the run has ended
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._thread.is_alive():  # not if its start was interrupted
            self._thread.join(_LONGEST_JOIN_SECONDS)
        self._progress.screen.close()
        last = self._take_snapshot(*_final_state(error))
        self._add_to_history(last)
        self._progress.history.end_run(_describe_ending(error))
        self._attempt(lambda: self._write_heartbeat(last, exit_code_of(error)))
        self._attempt(lambda: self._progress.history.save(self._output.folder))
        self._reporter.end(after_error=error is not None)
        if error is not None:
            self._attempt(self._show_closing_lines)

    def _show_closing_lines(self) -> None:
        """Show waits and the report's path after a run that failed; a complete run's summary has them."""
        for line in self._page.closing_lines(self._progress.history.runs[-1]):
            self._progress.screen.say(line)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            self._attempt(self._update)

    def _update(self) -> None:
        """Take a snapshot, and update everything that is due."""
        progress = self._progress
        snapshot = self._take_snapshot(*self._state())
        self._measure(snapshot)
        self._add_to_history(snapshot)
        self._attempt(lambda: progress.screen.show(snapshot))
        if self._is_due("heartbeat", HEARTBEAT_EVERY_SECONDS):
            self._attempt(lambda: self._write_heartbeat(snapshot))
        if self._is_due("history", HISTORY_EVERY_SECONDS):
            self._attempt(lambda: progress.history.save(self._output.folder))

    def _measure(self, snapshot: Snapshot) -> None:
        """Measure speed and waiting time. If one worker waits and others make tokens, that counts as work."""
        now, made = time.monotonic(), snapshot.tokens > self._last_tokens
        waiting = snapshot.state == WAITING
        if waiting and not made:
            self._progress.waited_seconds += now - self._last_look
        working = snapshot.state in WORKING or (waiting and made)
        self._speed.add(now, snapshot.tokens, working=working)
        self._fetch_speed.add(now, snapshot.fetched_bytes, working=working)
        self._last_look, self._last_tokens = now, snapshot.tokens

    def _add_to_history(self, snapshot: Snapshot) -> None:
        self._progress.history.add(
            snapshot.tokens,
            snapshot.memory_bytes,
            fetched_bytes=snapshot.fetched_bytes,
            stood_still_seconds=self._progress.waited_seconds,
        )

    def _is_due(self, what: str, every_seconds: float) -> bool:
        now = time.monotonic()
        due = now >= self._next_time.get(what, 0.0)
        if due:
            self._next_time[what] = now + every_seconds
        return due

    def _attempt(self, write: Callable[[], None]) -> None:
        """Call `write`. An error in it, be it a full disk or a bug here, must not end the run or the
        monitoring: it is logged, the same one only once."""
        try:
            write()
        except BaseException as error:
            if isinstance(error, Interrupted) and not self._ended.is_set():
                raise  # but not in __exit__, where the run ends anyway and the last files are to be written
            failure = f"the monitor could not write: {type(error).__name__}: {error}"
            if failure not in self._reported_failures:
                self._reported_failures.add(failure)
                self._progress.tell(Event("monitor", failure, loud=False))

    def _state(self) -> tuple[str, str]:
        progress = self._progress
        if waits := progress.waits:
            return WAITING, waits
        if progress.verifying:
            return VERIFYING, ""
        if not progress.begun:
            return STARTING, ""
        return (FETCHING if self._is_remote else ENCODING), ""

    def _take_snapshot(self, state: str, reason: str) -> Snapshot:
        progress, executor = self._progress, self._executor
        expected = progress.expected_tokens() if state != COMPLETE else progress.tokens
        speed = self._speed.per_second
        return Snapshot(
            state=state,
            reason=reason,
            tokens=progress.tokens,
            expected_tokens=expected,
            expected_exact=progress.total.exact or state == COMPLETE,
            resumed_tokens=progress.resumed_tokens,
            shard=progress.shard,
            shard_tokens=progress.shard_tokens,
            shard_size_tokens=self._output.shard_tokens,
            tokens_per_second=speed,
            seconds_left=seconds_left(progress.tokens, expected, speed) if state in WORKING else None,
            elapsed_seconds=time.monotonic() - self._began,
            workers=executor.workers,
            memory_bytes=executor.used_bytes,
            peak_memory_bytes=executor.peak_bytes,
            finished_shards=progress.finished_shards,
            verified_shards=progress.verified_shards,
            fetched_bytes=progress.fetched_bytes,
            fetched_bytes_per_second=self._fetch_speed.per_second,
            waited_seconds=progress.waited_seconds,
            nodes=executor.nodes,
        )

    def _write_heartbeat(self, snapshot: Snapshot, exit_code: int | None = None) -> None:
        Heartbeat(time.time(), self._invocation, snapshot, exit_code).save(self._output.folder)


def _describe_ending(error: BaseException | None) -> str:
    """Describe how the run ended, for the report's list of runs."""
    if error is None:
        return RUN_COMPLETE
    if isinstance(error, Interrupted):
        number = error.exit_code - 128
        return f"interrupted by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}"
    code = f"exit code {error.exit_code}" if isinstance(error, ShardError) else type(error).__name__
    return f"stopped, {code}: {error}"


def _final_state(error: BaseException | None) -> tuple[str, str]:
    """Return the state and the reason for the run's last snapshot."""
    if error is None:
        return COMPLETE, ""
    if isinstance(error, (ShardError, Interrupted)):
        return STOPPED, error.message
    return STOPPED, f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class ReportFunctions:
    """The functions that write the report. Passed in, because this package may not import `report`."""

    write: Callable[..., object]  # with the keyword alive: bool
    closing_lines: Callable[[RunRecord], list[str]]
    prepare: Callable[[], None]  # loads what `write` needs


class Reporter:
    """Keeps the report of one run. `attempt` calls a function, whose errors must not end the run."""

    def __init__(
        self,
        output: OutputSpec,
        progress: Progress,
        page: ReportFunctions,
        attempt: Callable[[Callable[[], None]], None],
    ) -> None:
        self._output = output
        self._progress = progress
        self._page = page
        self._attempt = attempt
        self._statistics: FolderStatistics | None = None
        self._next_report = time.monotonic() + _FIRST_REPORT_SECONDS
        self._prepared = False
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="reporter", daemon=True)

    def end(self, *, after_error: bool) -> None:
        """Write the report for the last time. After an error nothing is waited for: it may be that the shards
        can't be read, and somebody has pressed Ctrl-C because of that."""
        self._ended.set()
        if self.thread.is_alive():  # not if its start was interrupted
            self.thread.join(_LONGEST_JOIN_AFTER_ERROR_SECONDS if after_error else _LONGEST_JOIN_SECONDS)
        if after_error:
            self._output.store.hurry(_LONGEST_LAST_SECONDS)
        self._attempt(lambda: self._write_report(alive=False))

    def update(self) -> None:
        """Do what is due."""
        self._attempt(self._count_shard)
        if time.monotonic() >= self._next_report and not self._ended.is_set():
            self._next_report = time.monotonic() + REPORT_EVERY_SECONDS
            self._attempt(lambda: self._write_report(alive=True))
        if not self._prepared and self._progress.begun:
            self._prepared = True
            self._attempt(self._page.prepare)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            self.update()

    def _count_shard(self) -> None:
        """Add one finished shard to the folder's statistics. One per call, because it takes a while; the last
        report counts those that are missing."""
        records, output = self._progress.records, self._output
        in_order = output.split_rule.is_in_order
        if self._statistics is None:
            self._statistics = complete_folder_statistics(
                output.store, output.shard_format, records[:], in_order=in_order
            )
        elif self._statistics.shards < len(records):
            record = records[self._statistics.shards]
            shard_format = output.shard_format
            self._statistics = self._statistics.add(output.store, shard_format, record, in_order=in_order)

    def _write_report(self, *, alive: bool) -> None:
        if self._statistics is not None:
            self._statistics.save(self._output.folder)
        self._page.write(alive=alive)


class StartObserver(Observer):
    """Passes everything on, and records waits. A context manager around what is done before the run; nothing
    is written if it does not wait."""

    def __init__(
        self, shown: Observer, folder: Path, invocation: Invocation, done_tokens: int, shard_tokens: int
    ) -> None:
        self._shown = shown
        self._folder = folder
        self._invocation = invocation
        self._done_tokens = done_tokens
        self._shard_tokens = shard_tokens
        self._log = EventLog(folder)
        self._waits: dict[str, str] = {}  # cause to reason
        self._waited = False
        self._ended = threading.Event()

    def __enter__(self) -> StartObserver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._waited and error is not None:
            # By attribute: an interruption has both, and need not be one of our errors.
            code = getattr(error, "exit_code", 1)
            reason = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            self._log.write(Event("end", f"stopped with exit code {code}: {reason}"))
            self._write_heartbeat(STOPPED, reason, code)

    def tell(self, event: Event) -> None:
        self._shown.tell(event)
        if self._waited:
            self._log.write(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self._shown.set_wait(cause, reason)
        if reason is None:
            self._waits.pop(cause, None)
            self._log.write(Event("wait", f"the wait for the {cause} is over"))
        else:
            if cause not in self._waits:
                self._log.write(Event("wait", reason))
            self._waits[cause] = reason
        self._record()
        if not self._waited and not self._ended.is_set():
            self._waited = True
            threading.Thread(target=self._keep_recording, name="start", daemon=True).start()

    def _keep_recording(self) -> None:
        while not self._ended.wait(HEARTBEAT_EVERY_SECONDS):
            self._record()

    def _record(self) -> None:
        reason = "; ".join(list(self._waits.values()))
        if not self._ended.is_set():
            self._write_heartbeat(WAITING if reason else STARTING, reason)

    def _write_heartbeat(self, state: str, reason: str, exit_code: int | None = None) -> None:
        done, now = self._done_tokens, time.time()
        snapshot = Snapshot(
            state,
            reason,
            tokens=done,
            resumed_tokens=done,
            shard_size_tokens=self._shard_tokens,
            elapsed_seconds=now - self._invocation.started,
        )
        # A folder that can't be written is an error of the run itself, not of those who watch it.
        with contextlib.suppress(OSError):
            Heartbeat(now, self._invocation, snapshot, exit_code).save(self._folder)
