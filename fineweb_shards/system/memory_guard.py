"""Watch the memory of the machine during a run (run/resources.py divides it before the start).

The guard watches the whole machine, because other programs have precedence. For each process it counts the private
memory, which is what grows, and once the shared memory of the parent, mostly libraries. The kernel has both figures at
hand, while PSS takes milliseconds to compute. The guard only advises; executors/local/executor.py acts on it. The
memory of a single batch is bounded by its size, not here.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fineweb_shards.system import machine
from fineweb_shards.system.machine import MemoryLimit
from fineweb_shards.system.retry import Clock
from fineweb_shards.units import show_bytes

LOOK_EVERY_SECONDS = 1.0
# Memory is short when less than this is available or, on a small machine or in a small group, less than a twentieth.
SHORT_BYTES = 512 * 2**20
SHORT_SHARE = 20
# It is no longer short when twice that is available: with a single threshold pauses would start and end every second.
RELIEF = 2
# It is also short when all processes stall for it, whatever amount the kernel reports as available.
STALL_PERCENT = 20.0
STALL_RELIEF_PERCENT = 5.0
# If memory stays short, workers are ended one at a time, the largest first.
RETIRE_AFTER_SECONDS = 10.0
# The shortest time between two replacements of workers that exceed their share of the budget.
RENEW_EVERY_SECONDS = 30.0

Reading = tuple[Sequence[MemoryLimit], float]  # limits of the machine and its control groups; percent of time stalled


class Advice(enum.Enum):
    """What to do with the largest worker."""

    RETIRE = "end the largest worker"
    RENEW = "end the largest worker once it is idle, and start another"


@dataclass(eq=False)
class MemoryGuard:
    """Watches memory for one run. Measures at most once a second, however often `look` is called."""

    worker_bytes: int
    read: Callable[[], Reading] = lambda: (machine.memory_limits(), machine.memory_stall_percent())
    measure: Callable[[int], int | None] = machine.private_memory_bytes
    shared: Callable[[], int] = machine.own_shared_bytes
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.used_bytes = 0  # by the parent and all workers, if known
        self.peak_bytes = 0
        self.shortage: str | None = None  # what is short; no work may be given out until it is None
        self._sizes: dict[int, int] = {}
        self._next_look = self._next_renewal = self.clock.now()
        self._next_retirement = 0.0

    def look(self, workers: Sequence[int]) -> Advice | None:
        """Measure, and return advice on the workers, if any; `workers` are process ids."""
        now = self.clock.now()
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_EVERY_SECONDS
        self._sizes = {pid: self.measure(pid) or 0 for pid in (os.getpid(), *workers)}
        self.used_bytes = sum(self._sizes.values()) + self.shared()
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        before, self.shortage = self.shortage, self._find_shortage()
        if self.shortage:
            if before is None:
                self._next_retirement = now + RETIRE_AFTER_SECONDS
            if now >= self._next_retirement and workers:
                self._next_retirement = now + RETIRE_AFTER_SECONDS
                return Advice.RETIRE
            return None
        if now >= self._next_renewal and any(self._sizes.get(w, 0) > self.worker_bytes for w in workers):
            self._next_renewal = now + RENEW_EVERY_SECONDS
            return Advice.RENEW
        return None

    def size_bytes(self, worker: int) -> int:
        return self._sizes.get(worker, 0)

    def _find_shortage(self) -> str | None:
        """Describe the current shortage; None if there is none."""
        limits, stall_percent = self.read()
        factor = RELIEF if self.shortage else 1
        for limit in limits:
            if limit.available_bytes < factor * min(SHORT_BYTES, limit.total_bytes // SHORT_SHARE):
                return f"{limit.name} has {show_bytes(max(0, limit.available_bytes))} of memory left"
        if stall_percent > (STALL_RELIEF_PERCENT if self.shortage else STALL_PERCENT):
            return f"programs wait for memory {stall_percent:.0f} % of the time"
        return None
