"""Keep the errands of a run: functions that any worker may call, again if its worker dies. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic

from fineweb_shards.errors import WorkerError
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.executors.local.messages import Errand, Returned
from fineweb_shards.executors.schedule import Worker
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS


@dataclass
class _Entry(Generic[Worker]):
    errand: Errand
    future: Future[Any]
    worker: Worker | None = None  # None: nobody has it
    crashes: int = 0
    kills: int = 0


class Errands(Generic[Worker]):
    """All errands that are not done."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[Worker]] = {}
        self._count = 0

    def add(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        """Add an errand that nobody has yet."""
        entry: _Entry[Worker] = _Entry(Errand(self._count, function, arguments), Future())
        self._entries[self._count] = entry
        self._count += 1
        return entry.future

    def give_out(self, workers: Iterable[Worker]) -> Iterator[tuple[Worker, Errand]]:
        """Give every errand that nobody has to the worker with the fewest."""
        waiting = [entry for entry in self._entries.values() if entry.worker is None]
        available = list(workers) if waiting else []
        for entry in waiting if available else []:
            entry.worker = min(available, key=self.count)
            yield entry.worker, entry.errand

    def count(self, worker: Worker) -> int:
        """Return how many errands a worker has."""
        return sum(entry.worker == worker for entry in self._entries.values())

    def finish(self, returned: Returned) -> None:
        """Pass on what an errand's function returned or raised."""
        entry = self._entries.pop(returned.number)
        if returned.error is not None:
            entry.future.set_exception(returned.error)
        else:
            entry.future.set_result(returned.result)

    def remove_worker(self, worker: Worker, death: Death | None = None) -> None:
        """Take back the errands of a worker that is gone; if it died, count that, and raise WorkerError after
        too many times."""
        for entry in self._entries.values():
            if entry.worker != worker:
                continue
            entry.worker = None
            if death is not None:
                crashed = death.kind in (DeathKind.CRASHED, DeathKind.STUCK)
                entry.crashes, entry.kills = entry.crashes + crashed, entry.kills + (not crashed)
            if death is not None and (entry.crashes >= MAXIMUM_DEATHS or entry.kills >= MAXIMUM_KILLS):
                what = entry.errand.function.__name__.replace("_", " ")
                raise WorkerError(
                    f"Workers die while they {what}: the last one {death.description}.",
                    "Everything finished is kept; the same command goes on.",
                )
