"""Watch a run once a second, from a thread: update the screen, and the files for `status`.

It never disturbs the run: a write that fails, for example on a full disk, is left out and tried again the
next time it is due.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from fineweb_shards.errors import Interrupted, ShardError, exit_code_of
from fineweb_shards.events import Event
from fineweb_shards.executors.base import Executor
from fineweb_shards.store.store import OutputSpec
from fineweb_shards.watching.estimate import Speedometer, seconds_left
from fineweb_shards.watching.heartbeat import Heartbeat, Invocation
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.reporter import Page, Reporter
from fineweb_shards.watching.run_record import RUN_COMPLETE
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
_LONGEST_JOIN_SECONDS = 3.0


class Monitor:
    """Watches one run. A context manager around the whole run, so that it also records how the run ends."""

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
            self._reporter.start()
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
        code = exit_code_of(error)
        self._attempt(lambda: self._write_heartbeat(last, code))
        self._attempt(lambda: self._progress.history.save(self._output.folder))
        self._reporter.end(after_error=error is not None)
        if error is not None:
            self._attempt(self._show_closing_lines)

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

    def _show_closing_lines(self) -> None:
        """Show waits and the report's path after a run that failed; a complete run's summary has them."""
        for line in self._page.closing_lines(self._progress.history.runs[-1]):
            self._progress.screen.say(line)


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
