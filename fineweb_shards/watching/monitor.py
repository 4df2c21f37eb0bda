"""Looks at a run once a second, from a thread of its own, and tells whoever wants to know: the screen, and
the files from which `status` and the report are made.

It never disturbs the run: what can't be written (on a full disk, say) stays unwritten until it can.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.errors import Interrupted, ShardError
from fineweb_shards.events import Event
from fineweb_shards.executors.base import Executor
from fineweb_shards.reading.folder_statistics import FolderStatistics, complete_folder_statistics
from fineweb_shards.store.output import OutputSpec
from fineweb_shards.watching.estimate import Speedometer, seconds_left
from fineweb_shards.watching.heartbeat import Heartbeat, Invocation
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_record import RUN_COMPLETE, RunRecord
from fineweb_shards.watching.snapshot import (
    COMPLETE,
    ENCODING,
    FETCHING,
    STARTING,
    STOPPED,
    VERIFYING,
    WAITING,
    WORKING,
    Snapshot,
)

LOOK_EVERY_SECONDS = 1.0
HEARTBEAT_EVERY_SECONDS = 3.0
HISTORY_EVERY_SECONDS = 15.0
REPORT_EVERY_SECONDS = 60.0
_FIRST_REPORT_SECONDS = 5.0  # not while the workers start
_LONGEST_GOODBYE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Page:
    """The report of a run, which is made elsewhere: this room does not know how."""

    write: Callable[..., object]  # alive: bool
    closing_lines: Callable[[RunRecord], list[str]]


class Monitor:
    """Watches one run; a context manager around all of it, so that its end is told, too."""

    def __init__(
        self,
        output: OutputSpec,
        progress: Progress,
        executor: Executor,
        invocation: Invocation,
        page: Page,
        *,
        is_remote: bool = False,
    ) -> None:
        self._output = output
        self._page = page
        self._is_remote = is_remote
        self._progress = progress
        self._executor = executor
        self._invocation = invocation
        self._speed = Speedometer()  # in tokens
        self._fetch_speed = Speedometer()  # in bytes
        self._statistics: FolderStatistics | None = None
        self._began = self._last_look = time.monotonic()
        self._last_tokens = progress.tokens
        self._next_time = {"report": self._began + _FIRST_REPORT_SECONDS}
        self._complaints: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        # At once: the last word of a run before this one must not be taken for ours.
        self._attempt(lambda: self._beat(self._take_snapshot(STARTING, "")))
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._thread.join(_LONGEST_GOODBYE_SECONDS)
        self._progress.screen.close()
        last = self._take_snapshot(*_ending(error))
        self._remember(last)
        self._progress.history.end_run(_ending_words(error))
        code = error.exit_code if isinstance(error, ShardError) else int(error is not None)
        self._attempt(lambda: self._beat(last, code))
        self._attempt(lambda: self._progress.history.save(self._output.folder))
        self._attempt(lambda: self._write_report(alive=False))
        if error is not None:
            self._attempt(self._say_last_words)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            self._attempt(self._look)

    def _look(self) -> None:
        """Once around: everything that is due."""
        progress = self._progress
        snapshot = self._take_snapshot(*self._state())
        self._measure(snapshot)
        self._remember(snapshot)
        self._attempt(lambda: progress.screen.show(snapshot))
        if self._is_due("heartbeat", HEARTBEAT_EVERY_SECONDS):
            self._attempt(lambda: self._beat(snapshot))
        if self._is_due("history", HISTORY_EVERY_SECONDS):
            self._attempt(lambda: progress.history.save(self._output.folder))
        self._attempt(self._count_shard)
        if self._is_due("report", REPORT_EVERY_SECONDS):
            self._attempt(lambda: self._write_report(alive=True))

    def _measure(self, snapshot: Snapshot) -> None:
        """Speed and waits. Where one worker waits and the others go on, that is work all the same."""
        now, made = time.monotonic(), snapshot.tokens > self._last_tokens
        waiting = snapshot.state == WAITING
        if waiting and not made:
            self._progress.waited_seconds += now - self._last_look
        working = snapshot.state in WORKING or (waiting and made)
        self._speed.add(now, snapshot.tokens, working=working)
        self._fetch_speed.add(now, snapshot.fetched_bytes, working=working)
        self._last_look, self._last_tokens = now, snapshot.tokens

    def _remember(self, snapshot: Snapshot) -> None:
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
        """Neither a full disk nor a mistake in the telling ends a run or the watch; each is logged once."""
        try:
            write()
        except BaseException as error:
            if isinstance(error, Interrupted) and not self._ended.is_set():
                raise  # at the end it changes nothing: what is left is done in a moment
            complaint = f"the monitor could not write: {type(error).__name__}: {error}"
            if complaint not in self._complaints:
                self._complaints.add(complaint)
                self._progress.tell(Event("monitor", complaint, loud=False))

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
        )

    def _beat(self, snapshot: Snapshot, exit_code: int | None = None) -> None:
        Heartbeat(time.time(), self._invocation, snapshot, exit_code).save(self._output.folder)

    def _count_shard(self) -> None:
        """One at a time: there is always another second, and the last report counts what is missing."""
        records, output = self._progress.records, self._output
        in_order = output.split_rule.is_in_order
        if self._statistics is None:
            self._statistics = complete_folder_statistics(
                output.folder, output.shard_format, records[:], in_order=in_order
            )
        elif self._statistics.shards < len(records):
            record = records[self._statistics.shards]
            shard_format = output.shard_format
            self._statistics = self._statistics.add(output.folder, shard_format, record, in_order=in_order)

    def _write_report(self, *, alive: bool) -> None:
        if self._statistics is not None:
            self._statistics.save(self._output.folder)
        self._page.write(alive=alive)

    def _say_last_words(self) -> None:
        """After a run that did not come to its end; the summary of one that did has the same rows."""
        for line in self._page.closing_lines(self._progress.history.runs[-1]):
            self._progress.screen.say(line)


def _ending_words(error: BaseException | None) -> str:
    """For the list of runs."""
    if error is None:
        return RUN_COMPLETE
    if isinstance(error, Interrupted):
        number = error.exit_code - 128
        return f"interrupted by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}"
    code = f"exit code {error.exit_code}" if isinstance(error, ShardError) else type(error).__name__
    return f"stopped, {code}: {error}"


def _ending(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return COMPLETE, ""
    if isinstance(error, ShardError):
        return STOPPED, error.message
    return STOPPED, f"{type(error).__name__}: {error}"
