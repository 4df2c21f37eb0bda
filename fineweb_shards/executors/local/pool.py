"""The worker processes of a run: how many there are, who gets work, and who has to go."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.death import Death, Kind
from fineweb_shards.executors.local.process import WorkerProcess
from fineweb_shards.executors.local.worker import WorkerSpec
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS
from fineweb_shards.system.memory_guard import Advice, MemoryGuard
from fineweb_shards.units import show_bytes


class WorkerPool:
    """Follows the memory guard's advice. What becomes of a worker's batches is the supervisor's business."""

    def __init__(self, spec: WorkerSpec, guard: MemoryGuard) -> None:
        self.workers: list[WorkerProcess] = []
        self.observer = Observer()
        self.paused = False  # memory is short
        self._spec = spec
        self._guard = guard
        self._early_crashes = self._early_kills = 0

    def fill(self, count: int) -> None:
        """Start those who are missing, if memory allows it."""
        while len(self.workers) < count and not self.paused:
            self.workers.append(WorkerProcess(self._spec))

    def remove(self, worker: WorkerProcess) -> None:
        worker.kill()
        worker.join()
        self.workers.remove(worker)

    def stop(self) -> None:
        """End all of them."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()

    def least_busy(self, depth: int) -> WorkerProcess | None:
        """Who has the least to do, if that is less than `depth` batches."""
        ready = [worker for worker in self.workers if worker.ready and not worker.leaving]
        worker = min(ready, key=lambda one: len(one.tasks), default=None)
        return worker if worker is not None and len(worker.tasks) < depth else None

    def apply_memory_advice(self) -> Iterator[WorkerProcess]:
        """Do what the guard says; yields those who have to go."""
        was_paused = self.paused
        advice = self._guard.look([worker.pid for worker in self.workers])
        self.paused = self._guard.shortage is not None
        if self.paused and not was_paused:
            since = time.strftime("%H:%M")
            self.observer.wait("memory", f"paused for memory since {since}: {self._guard.shortage}")
        elif was_paused and not self.paused:
            self.observer.wait("memory", None)
        if advice is Advice.RETIRE:
            yield self._retire(self._largest(), "memory stays short")
        elif advice is Advice.RENEW:
            self._largest().leaving = True
        for worker in [one for one in self.workers if one.leaving and not one.tasks]:
            yield self._retire(worker, "it had grown beyond its share of the memory budget")

    def note_ready(self) -> None:
        self._early_crashes = self._early_kills = 0

    def note_early_death(self, death: Death) -> None:
        """A worker ended before it was ready. A few in a row, and something is wrong with all of them."""
        if death.kind in (Kind.CRASHED, Kind.STUCK):
            self._early_crashes += 1
        else:
            self._early_kills += 1
        if self._early_crashes >= MAXIMUM_DEATHS or self._early_kills >= MAXIMUM_KILLS:
            raise WorkerError(f"Workers end before they begin: the last one {death.words}.")

    def tell_wait(self) -> None:
        """Somebody waits for the network, or nobody does any longer."""
        waits = [worker.waiting for worker in self.workers if worker.waiting is not None]
        self.observer.wait("network", waits[0] if waits else None)

    def _largest(self) -> WorkerProcess:
        return max(self.workers, key=lambda worker: self._guard.size_bytes(worker.pid))

    def _retire(self, worker: WorkerProcess, why: str) -> WorkerProcess:
        """Say that a worker is ended which has done nothing wrong."""
        size = show_bytes(self._guard.size_bytes(worker.pid))
        self.observer.tell(Event("memory", f"worker {worker.pid} ({size}) was ended: {why}"))
        return worker
