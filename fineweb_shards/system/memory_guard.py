"""Divide the memory among workers before the start, and watch it during the run.

The guard looks at the whole machine, not only at this program: other programs on it have precedence. It only
gives advice, which the supervisor (executors/local/executor.py) follows. It does not limit what a single
batch takes: that is bounded by how batches are cut.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fineweb_shards.errors import UsageError
from fineweb_shards.system.machine import (
    MemoryLimit,
    available_memory_bytes,
    memory_limits,
    memory_stall_percent,
    process_memory_bytes,
    usable_cores,
)
from fineweb_shards.system.retry import Clock
from fineweb_shards.units import show_bytes

# What a process may take. Measured: two workers, the parent and the text in flight peak at 773 MB (PSS).
WORKER_BYTES = 240 * 2**20
PARENT_BYTES = 192 * 2**20
# A batch takes its text as bytes and as str, and its tokens twice in transit and once in the parent.
_COPIES = 4
MAXIMUM_WINDOW_BYTES = 192 * 2**20
MAXIMUM_BUDGET_BYTES = 4 * 2**30
BUDGET_SHARE = 4  # the default budget is a quarter of what is available

LOOK_EVERY_SECONDS = 1.0
# Memory is short when less than this is available, or in a small machine or group less than a twentieth.
SHORT_BYTES = 512 * 2**20
SHORT_SHARE = 20
# ... and no longer short when twice that is available: with one threshold, pauses would start and end
# every second.
RELIEF = 2
# It is also short when all processes stall for it, however much the kernel says is available.
STALL_PERCENT = 20.0
STALL_RELIEF_PERCENT = 5.0
# When it stays short, workers are ended, one at a time, the largest first.
RETIRE_AFTER_SECONDS = 10.0
# A worker that exceeds its share of the budget is replaced, but not more often than this.
RENEW_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How many workers a run has, and how much memory."""

    workers: int
    memory_bytes: int
    window_bytes: int  # the most text in flight
    wanted_workers: int | None = None  # as requested; the memory may not be enough for so many

    @property
    def worker_bytes(self) -> int:
        """A worker's share of the memory, including its part of the text in flight."""
        return (self.memory_bytes - PARENT_BYTES) // self.workers


def plan_budget(workers: int | None, max_memory: int | None, batch_bytes: int) -> Budget:
    """Divide the memory among the workers, of which there are fewer if it is not enough for all."""
    memory = _memory_budget_bytes(max_memory)
    wanted = workers or usable_cores()
    least_window = 2 * batch_bytes
    room = memory - PARENT_BYTES - least_window * _COPIES
    fitting = min(wanted, room // WORKER_BYTES)
    if fitting < 1:
        needed = PARENT_BYTES + WORKER_BYTES + least_window * _COPIES
        found = "A memory budget of" if max_memory is None else "--max-memory"
        raise UsageError(
            f"{found} {show_bytes(memory)} is too small: one worker needs {show_bytes(needed)}.",
            "Give more with --max-memory, close other programs, or use a smaller --batch-bytes.",
        )
    window = (memory - PARENT_BYTES - fitting * WORKER_BYTES) // _COPIES
    return Budget(fitting, memory, min(window, max(MAXIMUM_WINDOW_BYTES, least_window)), workers)


def _memory_budget_bytes(max_memory: int | None) -> int:
    """Return the requested budget, checked to exist, or by default a share of what is available."""
    if max_memory is None:
        return min(available_memory_bytes() // BUDGET_SHARE, MAXIMUM_BUDGET_BYTES)
    smallest = min(memory_limits(), key=lambda limit: limit.total_bytes)
    if max_memory > smallest.total_bytes:
        raise UsageError(
            f"--max-memory {show_bytes(max_memory)}: {smallest.name} has {show_bytes(smallest.total_bytes)}.",
            "Leave it out for a quarter of what is available, or name less than that.",
        )
    return max_memory


class Advice(enum.Enum):
    """What the supervisor should do about memory."""

    GO = "go on"
    PAUSE = "give out no more work"
    RETIRE = "end the largest worker"
    RENEW = "end the largest worker when it has nothing to do, and start another"


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of the memory of the machine and its control groups."""

    limits: Sequence[MemoryLimit]
    stall_percent: float


def read_memory() -> Reading:
    return Reading(memory_limits(), memory_stall_percent())


class MemoryGuard:
    """Watches memory for one run. Measures at most once a second, however often `look` is called."""

    def __init__(
        self,
        worker_bytes: int,
        read: Callable[[], Reading] = read_memory,
        measure: Callable[[int], int | None] = process_memory_bytes,
        clock: Clock | None = None,
    ) -> None:
        self.used_bytes = 0  # by the parent and all workers, where it can be measured
        self.peak_bytes = 0
        self.shortage: str | None = None  # while memory is short: what is short
        self._sizes: dict[int, int] = {}
        self._worker_bytes = worker_bytes
        self._read = read
        self._measure = measure
        self._clock = clock or Clock()
        self._next_look = self._clock.now()
        self._next_retirement = 0.0
        self._next_renewal = self._next_look

    def look(self, workers: Sequence[int]) -> Advice:
        """Measure, and return what to do now; `workers` are process ids."""
        now = self._clock.now()
        if now < self._next_look:
            return Advice.PAUSE if self.shortage else Advice.GO
        self._next_look = now + LOOK_EVERY_SECONDS
        self._measure_processes(workers)
        before, self.shortage = self.shortage, self._find_shortage()
        if self.shortage:
            if before is None:
                self._next_retirement = now + RETIRE_AFTER_SECONDS
            if now >= self._next_retirement and workers:
                self._next_retirement = now + RETIRE_AFTER_SECONDS
                return Advice.RETIRE
            return Advice.PAUSE
        if now >= self._next_renewal and any(self._sizes.get(w, 0) > self._worker_bytes for w in workers):
            self._next_renewal = now + RENEW_EVERY_SECONDS
            return Advice.RENEW
        return Advice.GO

    def size_bytes(self, worker: int) -> int:
        """Return a worker's memory at the last measurement."""
        return self._sizes.get(worker, 0)

    def _measure_processes(self, workers: Sequence[int]) -> None:
        self._sizes = {pid: self._measure(pid) or 0 for pid in (os.getpid(), *workers)}
        self.used_bytes = sum(self._sizes.values())
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _find_shortage(self) -> str | None:
        """Describe what is short now; None if nothing is."""
        reading = self._read()
        factor = RELIEF if self.shortage else 1
        for limit in reading.limits:
            if limit.available_bytes < factor * min(SHORT_BYTES, limit.total_bytes // SHORT_SHARE):
                return f"{limit.name} has {show_bytes(max(0, limit.available_bytes))} of memory left"
        if reading.stall_percent > (STALL_RELIEF_PERCENT if self.shortage else STALL_PERCENT):
            return f"programs wait for memory {reading.stall_percent:.0f} % of the time"
        return None
