"""Notices workers that have work and do nothing: deaf, deadlocked, or stopped. They are killed, and are then
dead workers like any other.

From a thread of its own, because the executor itself may be waiting for such a worker, in the middle of a
message. A worker is well as long as it says something or uses processor time, waits for the network (it says
so), for a disk or for a core (the kernel says so), or while the executor does not listen to it. Time in
which nobody looked does not count: the machine was asleep, or we were stopped with everybody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.local.process import WorkerProcess
from fineweb_shards.system.machine import process_life
from fineweb_shards.system.retry import Clock
from fineweb_shards.units import show_seconds

LOOK_EVERY_SECONDS = 1.0
# Nothing said, and next to no processor time used.
STUCK_SECONDS = 600.0
_NEXT_TO_NOTHING_SECONDS = 0.1
# Nothing said for so much processor time: a thousand times what a batch takes. Where nobody can tell the
# processor time, the clock's time counts.
ENDLESS_SECONDS = 3600.0
# Waiting for a disk, for a core, for a debugger: not its fault.
_EXCUSED_STATES = "DRt"

Suspects = Callable[[], Sequence[WorkerProcess]]


class WorkerActivity:
    """What is known of one worker's last sign of life."""

    def __init__(self) -> None:
        self._messages = -1
        self._begin()

    def _begin(self) -> None:
        self._idle_seconds = self._silent_seconds = 0.0
        self._idle_from: float | None = None
        self._silent_from: float | None = None

    def look(self, messages: int, life: tuple[str, float] | None, passed_seconds: float) -> str | None:
        """Tell what is wrong with the worker, if anything is. `life`: its state and processor time."""
        if messages != self._messages:
            self._messages = messages
            self._begin()
        self._silent_seconds += passed_seconds
        if life is None:
            return self._judge_silence(self._silent_seconds)
        state, used = life
        if self._silent_from is None or self._idle_from is None:
            self._silent_from = self._idle_from = used
        if state in _EXCUSED_STATES or used - self._idle_from > _NEXT_TO_NOTHING_SECONDS:
            self._idle_seconds, self._idle_from = 0.0, used
        else:
            self._idle_seconds += passed_seconds
        if self._idle_seconds >= STUCK_SECONDS:
            stopped = " (it is stopped)" if state == "T" else ""
            return f"did nothing for {show_seconds(self._idle_seconds)}{stopped}"
        return self._judge_silence(used - self._silent_from)

    def _judge_silence(self, seconds: float) -> str | None:
        return (
            f"worked on one piece of text for {show_seconds(seconds)}" if seconds >= ENDLESS_SECONDS else None
        )


class Watchdog:
    """A context manager: watches while it is entered. `suspects` are those who have no excuse now."""

    def __init__(self, suspects: Suspects, observer: Observer, clock: Clock | None = None) -> None:
        self._observer = observer
        self._suspects = suspects
        self._clock = clock or Clock()
        self._activities: dict[WorkerProcess, WorkerActivity] = {}
        self._last_look = self._clock.now()
        self._complaints: set[str] = set()
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
            except BaseException as error:  # it is told, and the next look may succeed
                complaint = f"the watch over the workers failed: {type(error).__name__}: {error}"
                if complaint not in self._complaints:
                    self._complaints.add(complaint)
                    self._observer.tell(Event("worker", complaint))

    def look(self) -> None:
        """Look at every suspect once, and kill those who do nothing."""
        now = self._clock.now()
        passed = min(now - self._last_look, 2 * LOOK_EVERY_SECONDS)
        self._last_look = now
        suspects = list(self._suspects())
        self._activities = {worker: self._activities.get(worker) or WorkerActivity() for worker in suspects}
        for worker, activity in self._activities.items():
            life = process_life(worker.pid)
            fault = activity.look(worker.messages, life, passed)
            if fault is not None:
                stopped = life is not None and life[0] == "T"  # somebody else's doing
                worker.kill_stuck(fault, blameless=stopped)
