"""Watch a run once a second, from a thread: update the screen, and the files for `status`.

It never disturbs the run: a failed write, for example on a full disk, is skipped until the next one is due. The report
is written by a separate thread, because it reads shards: a bucket or disk that hangs delays neither the screen nor the
heartbeat.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.errors import Interrupted, ShardError, exit_code_of
from fineweb_shards.events import Event
from fineweb_shards.executors.base import Executor
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.watching.progress import Progress, Speedometer
from fineweb_shards.watching.run_files import Heartbeat, Invocation, RunRecord, Snapshot, State

LOOK_EVERY_SECONDS = 1.0
HEARTBEAT_EVERY_SECONDS = 3.0
HISTORY_EVERY_SECONDS = 15.0
REPORT_EVERY_SECONDS = 60.0
_FIRST_REPORT_SECONDS = 5.0  # not while the workers start
_LONGEST_JOIN_SECONDS = 3.0
_LONGEST_JOIN_AFTER_ERROR_SECONDS = 1.0
_LONGEST_LAST_SECONDS = 3.0  # for a response, when the run ends with an error


@dataclass(eq=False)
class Monitor:
    """Watches one run. A context manager around the whole run, which also records how it ends.

    `write_report` (with the keyword `alive`) and `closing_lines` are arguments because this package must not import
    `report`.
    """

    output: OutputSpec
    progress: Progress
    executor: Executor
    invocation: Invocation
    write_report: Callable[..., object]
    closing_lines: Callable[[RunRecord], list[str]]
    is_remote: bool = False

    def __post_init__(self) -> None:
        self._speed, self._fetch_speed = Speedometer(), Speedometer()  # in tokens, in bytes
        self._began = self._last_look = time.monotonic()
        self._last_tokens = self.progress.tokens + self.progress.other_pass_tokens
        self._earlier_peak_bytes = 0
        self._next_time = {"report": self._began + _FIRST_REPORT_SECONDS}  # when each is due
        self._reported_failures: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=[self._update], name="monitor", daemon=True)
        self._reporter = threading.Thread(target=self._watch, args=[self._update_report], name="reporter", daemon=True)

    @property
    def peak_bytes(self) -> int:
        return max(self._earlier_peak_bytes, self.executor.peak_bytes)

    def replace_executor(self, executor: Executor, *, is_remote: bool) -> None:
        """From now on watch the executor of a shuffle's second pass, whose speed is measured separately."""
        self._earlier_peak_bytes = self.peak_bytes
        self.executor, self.is_remote = executor, is_remote
        self._speed, self._fetch_speed = Speedometer(), Speedometer()

    def __enter__(self) -> Monitor:
        # At once, so that nobody takes the previous run's heartbeat for this one's.
        try:
            self._attempt(lambda: self._write_heartbeat(self._take_snapshot(State.STARTING, "")))
            self._thread.start()
            self._reporter.start()
        except BaseException as error:  # interrupted: record that end
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._thread.is_alive():  # not if its start was interrupted
            self._thread.join(_LONGEST_JOIN_SECONDS)
        state, reason, ending = _describe_end(error)
        last = self._take_snapshot(state, reason)
        self._attempt(lambda: self.progress.screen.close(last))
        self.progress.history.update(last)
        self.progress.history.end_run(ending)
        self._attempt(lambda: self._write_heartbeat(last, exit_code_of(error)))
        self._attempt(lambda: self.progress.history.save(self.output.folder))
        # After an error, don't wait: perhaps the user pressed Ctrl-C because the shards can't be read.
        if self._reporter.is_alive():
            self._reporter.join(_LONGEST_JOIN_AFTER_ERROR_SECONDS if error else _LONGEST_JOIN_SECONDS)
        if error is not None:
            self.output.store.hurry(_LONGEST_LAST_SECONDS)
        self._attempt(lambda: self.write_report(alive=False))
        if error is not None:
            self._attempt(self._show_closing_lines)

    def _show_closing_lines(self) -> None:
        """Show waits and the report's path after a failed run; the summary of a complete run has them."""
        for line in self.closing_lines(self.progress.history.runs[-1]):
            self.progress.screen.say(line)

    def _watch(self, update: Callable[[], None]) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            self._attempt(update)

    def _update(self) -> None:
        progress = self.progress
        snapshot = self._take_snapshot(*self._state())
        # If one worker waits and others make tokens, that counts as work.
        now, made = time.monotonic(), snapshot.processed_tokens > self._last_tokens
        if snapshot.state == State.WAITING and not made:
            progress.waited_seconds += now - self._last_look
        working = snapshot.state in (State.FETCHING, State.ENCODING) or (snapshot.state == State.WAITING and made)
        self._speed.add(now, snapshot.processed_tokens, working=working)
        self._fetch_speed.add(now, snapshot.fetched_bytes, working=working)
        self._last_look, self._last_tokens = now, snapshot.processed_tokens
        progress.history.update(snapshot)
        self._attempt(lambda: progress.screen.show(snapshot))
        if self._is_due("heartbeat", HEARTBEAT_EVERY_SECONDS):
            self._attempt(lambda: self._write_heartbeat(snapshot))
        if self._is_due("history", HISTORY_EVERY_SECONDS):
            self._attempt(lambda: progress.history.save(self.output.folder))

    def _update_report(self) -> None:
        if self._is_due("report", REPORT_EVERY_SECONDS):
            self._attempt(lambda: self.write_report(alive=True))

    def _write_heartbeat(self, snapshot: Snapshot, exit_code: int | None = None) -> None:
        Heartbeat(time.time(), self.invocation, snapshot, exit_code).save(self.output.folder)

    def _is_due(self, what: str, every_seconds: float) -> bool:
        now = time.monotonic()
        if now < self._next_time.get(what, 0.0):
            return False
        self._next_time[what] = now + every_seconds
        return True

    def _attempt(self, write: Callable[[], object]) -> None:
        """Call `write`. An error in it, a full disk or a bug, must not end the run or the monitoring: log it, once."""
        try:
            write()
        except BaseException as error:
            if isinstance(error, Interrupted) and not self._ended.is_set():
                raise  # not in __exit__: the run ends anyway, and the last files must be written
            failure = f"the monitor could not write: {type(error).__name__}: {error}"
            if failure not in self._reported_failures:
                self._reported_failures.add(failure)
                self.progress.tell(Event("monitor", failure, loud=False))

    def _state(self) -> tuple[str, str]:
        if waits := self.progress.waits:
            return State.WAITING, waits
        if self.progress.verifying:
            return State.VERIFYING, ""
        if not self.progress.begun:
            return State.STARTING, ""
        return (State.FETCHING if self.is_remote else State.ENCODING), ""

    def _take_snapshot(self, state: str, reason: str) -> Snapshot:
        progress, executor = self.progress, self.executor
        number, tokens, other = progress.pass_number, progress.tokens, progress.other_pass_tokens  # read together
        expected = progress.expected_tokens() if state != State.COMPLETE else tokens
        speed, working = self._speed.per_second, state in (State.FETCHING, State.ENCODING)
        return Snapshot(
            state=state,
            reason=reason,
            tokens=tokens,
            expected_tokens=expected,
            expected_exact=progress.total.exact or state == State.COMPLETE,
            resumed_tokens=progress.resumed_tokens,
            shard=progress.shard,
            shard_tokens=progress.shard_tokens,
            shard_size_tokens=self.output.shard_tokens,
            tokens_per_second=speed,
            seconds_left=progress.seconds_left(expected, speed) if working else None,
            elapsed_seconds=time.monotonic() - self._began,
            workers=executor.workers,
            memory_bytes=executor.used_bytes,
            peak_memory_bytes=self.peak_bytes,
            finished_shards=progress.finished_shards,
            verified_shards=progress.verified_shards,
            fetched_bytes=progress.fetched_bytes,
            fetched_bytes_per_second=self._fetch_speed.per_second,
            waited_seconds=progress.waited_seconds,
            nodes=executor.nodes,
            parts=progress.shares,
            pass_number=number,
            other_pass_tokens=other,
        )


def _describe_end(error: BaseException | None) -> tuple[State, str, str]:
    """Return the last state, its reason, and the ending for the report's list of runs."""
    if error is None:
        return State.COMPLETE, "", State.COMPLETE
    if isinstance(error, Interrupted):
        number = error.exit_code - 128
        by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        return State.STOPPED, error.message, f"interrupted by {by}"
    if isinstance(error, ShardError):
        return State.STOPPED, error.message, f"stopped, exit code {error.exit_code}: {error}"
    reason = f"{type(error).__name__}: {error}"
    return State.STOPPED, reason, f"stopped, {reason}"
