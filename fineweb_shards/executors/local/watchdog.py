"""Kill workers that have work and do nothing, such as deadlocked or stopped ones.

They are then handled like all dead workers. The watchdog has a thread of its own, because the executor itself
may be blocked by such a worker, in the middle of a message. A worker is fine as long as it sends messages or
uses processor time, waits for the network (it reports that), for a disk or for a core (the kernel reports
that), or while the executor does not receive from it. Time in which the watchdog did not run does not count:
the machine was suspended, or the whole run was stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.local.pool import WorkerProcess
from fineweb_shards.system.machine import process_life
from fineweb_shards.system.retry import Clock
from fineweb_shards.units import show_seconds

LOOK_EVERY_SECONDS = 1.0
# No message, and almost no processor time used.
STUCK_SECONDS = 600.0
_NEGLIGIBLE_SECONDS = 0.1
# No message for this much processor time: a thousand times what a batch takes. If the processor time is not
# known, wall time counts.
ENDLESS_SECONDS = 3600.0
# States of a process that waits for a disk (D), runs or waits for a core (R), or is being debugged (t).
_ACTIVE_STATES = "DRt"

GetWatched = Callable[[], Sequence[WorkerProcess]]


class WorkerActivity:
    """Measures for how long one worker has sent no message, and has used no processor time."""

    def __init__(self) -> None:
        self._messages = -1
        self._begin()

    def _begin(self) -> None:
        self._idle_seconds = self._silent_seconds = 0.0
        self._idle_from: float | None = None
        self._silent_from: float | None = None

    def look(self, messages: int, life: tuple[str, float] | None, passed_seconds: float) -> str | None:
        """Return what is wrong with the worker, or None. `life` is its state and processor time, if known."""
        if messages != self._messages:
            self._messages = messages
            self._begin()
        self._silent_seconds += passed_seconds
        if life is None:
            return self._judge_silence(self._silent_seconds)
        state, used = life
        if self._silent_from is None or self._idle_from is None:
            self._silent_from = self._idle_from = used
        if state in _ACTIVE_STATES or used - self._idle_from > _NEGLIGIBLE_SECONDS:
            self._idle_seconds, self._idle_from = 0.0, used
        else:
            self._idle_seconds += passed_seconds
        if self._idle_seconds >= STUCK_SECONDS:
            stopped = " (it is stopped)" if state == "T" else ""
            return f"did nothing for {show_seconds(self._idle_seconds)}{stopped}"
        return self._judge_silence(used - self._silent_from)

    def _judge_silence(self, seconds: float) -> str | None:
        """Return what is wrong with a worker that has sent no message for this long, or None."""
        return (
            f"worked on one piece of text for {show_seconds(seconds)}" if seconds >= ENDLESS_SECONDS else None
        )


class Watchdog:
    """Watches workers while it is entered. `get_watched` returns those that should respond now."""

    def __init__(self, get_watched: GetWatched, observer: Observer, clock: Clock | None = None) -> None:
        self._observer = observer
        self._get_watched = get_watched
        self._clock = clock or Clock()
        self._activities: dict[WorkerProcess, WorkerActivity] = {}
        self._last_look = self._clock.now()
        self._reported: set[str] = set()  # errors of the watchdog itself
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            try:
                self.look()
            except BaseException as error:  # reported once; the next look may succeed
                failure = f"the watchdog of the workers failed: {type(error).__name__}: {error}"
                if failure not in self._reported:
                    self._reported.add(failure)
                    self._observer.tell(Event("worker", failure))

    def look(self) -> None:
        """Check each watched worker once, and kill those that do nothing."""
        now = self._clock.now()
        passed = min(now - self._last_look, 2 * LOOK_EVERY_SECONDS)
        self._last_look = now
        watched = list(self._get_watched())
        self._activities = {worker: self._activities.get(worker) or WorkerActivity() for worker in watched}
        for worker, activity in self._activities.items():
            life = process_life(worker.pid)
            reason = activity.look(worker.messages, life, passed)
            if reason is not None:
                worker.kill_stuck(reason, stopped=life is not None and life[0] == "T")
