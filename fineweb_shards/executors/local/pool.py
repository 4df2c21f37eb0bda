"""Keep the worker processes of a run: start them, end them, and decide which may get work.

What they work on is decided in schedule.py.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.executors.local.mailbox import Mailbox
from fineweb_shards.executors.local.process import WorkerProcess
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS
from fineweb_shards.system.memory_guard import Advice, MemoryGuard
from fineweb_shards.units import show_bytes


class WorkerPool:
    """Starts and ends workers, as the memory guard advises."""

    def __init__(self, spec: WorkerSpec, guard: MemoryGuard, observer: Observer) -> None:
        self.workers: list[WorkerProcess] = []
        self.mailbox = Mailbox()
        self.senders: dict[object, WorkerProcess] = {}  # by pipe, and by sentinel
        self.paused = False  # memory is short
        self._observer = observer
        self._spec = pickle.dumps(spec)  # once for all workers
        self._guard = guard
        self._early_crashes = self._early_kills = 0

    def fill(self, count: int) -> None:
        """Start workers until there are `count`, unless memory is short."""
        while len(self.workers) < count and not self.paused:
            worker = WorkerProcess(self._spec)
            self.workers.append(worker)
            self.senders |= {worker.pipe: worker, worker.sentinel: worker}
            self.mailbox.add(worker.pipe, worker.sentinel)

    def remove(self, worker: WorkerProcess) -> None:
        """Kill a worker and remove it from the pool."""
        self.mailbox.remove(worker.pipe, worker.sentinel)
        del self.senders[worker.pipe], self.senders[worker.sentinel]
        worker.kill()
        worker.join()
        self.workers.remove(worker)

    def stop(self) -> None:
        """Kill all workers, and wait until they have ended."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        self.mailbox.close()

    @property
    def available(self) -> list[WorkerProcess]:
        """The workers that may be given work."""
        return [worker for worker in self.workers if worker.ready and not worker.leaving]

    def apply_memory_advice(self, is_needed: Callable[[WorkerProcess], bool]) -> Iterator[WorkerProcess]:
        """Pause or continue as the memory guard says; yield the workers that the caller has to end.

        A worker that has grown beyond its share gets no more batches, and is yielded once nothing of it is
        needed.
        """
        was_paused = self.paused
        advice = self._guard.look([worker.pid for worker in self.workers])
        self.paused = self._guard.shortage is not None
        if self.paused and not was_paused:
            since = time.strftime("%H:%M")
            self._observer.set_wait("memory", f"paused for memory since {since}: {self._guard.shortage}")
        elif was_paused and not self.paused:
            self._observer.set_wait("memory", None)
        if advice is Advice.RETIRE:
            yield self._retire(self._largest(), "memory stays short")
        elif advice is Advice.RENEW:
            self._largest().leaving = True
        for worker in [one for one in self.workers if one.leaving and not is_needed(one)]:
            yield self._retire(worker, "it had grown beyond its share of the memory budget")

    def note_ready(self) -> None:
        """Reset the count of early deaths, because a worker has started successfully."""
        self._early_crashes = self._early_kills = 0

    def note_early_death(self, death: Death) -> None:
        """Count a worker that died before it was ready; raise WorkerError after several in a row."""
        if death.kind in (DeathKind.CRASHED, DeathKind.STUCK):
            self._early_crashes += 1
        else:
            self._early_kills += 1
        if self._early_crashes >= MAXIMUM_DEATHS or self._early_kills >= MAXIMUM_KILLS:
            raise WorkerError(f"Workers die before they are ready: the last one {death.description}.")

    def report_wait(self, cause: str) -> None:
        """Tell the observer that a worker waits for the network or the disk, or that none does any longer."""
        waits = [worker.waits[cause] for worker in self.workers if cause in worker.waits]
        self._observer.set_wait(cause, waits[0] if waits else None)

    def _largest(self) -> WorkerProcess:
        return max(self.workers, key=lambda worker: self._guard.size_bytes(worker.pid))

    def _retire(self, worker: WorkerProcess, why: str) -> WorkerProcess:
        """Report that a worker is ended because of memory, and return it."""
        size = show_bytes(self._guard.size_bytes(worker.pid))
        self._observer.tell(Event("memory", f"worker {worker.pid} ({size}) was ended: {why}"))
        return worker
