"""Finish files, the same for every executor: seal a segment, or write the sidecars of a finished file.

What is to be done is a value (`FileWork`), so that it can be sent to any worker, and again to another one if
that dies; `WorkerSpec.finish_file` does it. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic

from fineweb_shards.errors import ShardError, WorkerError, describe_error
from fineweb_shards.executors.schedule import Worker
from fineweb_shards.executors.task import Death, DeathCount
from fineweb_shards.store.sidecars import FinishedFile
from fineweb_shards.store.store import Segment
from fineweb_shards.types import Placement

FileWork = Segment | FinishedFile


def describe_work(work: FileWork | None) -> str:
    """Say what is to be done with a file; None: only tokens are written."""
    if work is None:
        return "write tokens"
    return "seal a file" if isinstance(work, Segment) else "write sidecars"


@dataclass(frozen=True)
class StoredTokens:
    """Tokens to write: a placement of one of the arrays in one of the objects that a task is given."""

    object: int
    array: int
    placement: Placement


@dataclass(frozen=True)
class FileOrder:
    """An order for any worker: write tokens, if it is given any, then finish the file."""

    number: int
    work: FileWork | None  # None: only write
    tokens: tuple[StoredTokens, ...] = ()
    on_own_disk: bool = False  # make the segment's file anew from the tokens: the worker does not see it


@dataclass(frozen=True)
class FileResult:
    """The end of an order: the SHA-256 of a segment, or the error, or the objects that are lost."""

    number: int
    sha256: str | None = None
    error: ShardError | None = None
    lost: tuple[int, ...] = ()


def try_order(
    order: FileOrder, action: Callable[[], FileResult], who: Callable[[], str] = lambda: "A worker"
) -> FileResult:
    """Return the result of an order, or the error that `action`, which does it, has raised."""
    try:
        return action()
    except ShardError as error:
        return FileResult(order.number, error=error)
    except Exception as error:
        bug = f"{who()} could not {describe_work(order.work)}: {describe_error(error)}"
        return FileResult(order.number, error=ShardError(bug))


@dataclass(eq=False)
class FileTask:
    """A file that is to be finished, and the deaths of workers that tried."""

    number: int
    work: FileWork | None
    future: Future[Any] = field(default_factory=Future)
    deaths: DeathCount = field(default_factory=DeathCount)

    def finish(self, result: FileResult) -> None:
        """Pass on the result or the error."""
        if result.error is not None:
            self.future.set_exception(result.error)
        else:
            self.future.set_result(result.sha256)

    def note_death(self, death: Death) -> None:
        """Count a worker that died; WorkerError after too many."""
        if self.deaths.add(death):
            raise WorkerError(
                f"Workers die while they {describe_work(self.work)}: the last one {death.description}.",
                "Everything finished is kept; rerun the same command to resume.",
            )


class FileTasks(Generic[Worker]):
    """All file tasks that are not done, and the worker that has each of them."""

    def __init__(self) -> None:
        self._tasks: dict[int, FileTask] = {}  # by number
        self._workers: dict[int, Worker] = {}  # by the number of the task
        self._count = 0

    def add(self, work: FileWork) -> Future[Any]:
        """Add a task that nobody has yet."""
        task = self._tasks[self._count] = FileTask(self._count, work)
        self._count += 1
        return task.future

    def give_out(self, workers: Iterable[Worker]) -> Iterator[tuple[Worker, FileOrder]]:
        """Give every task that nobody has to the worker with the fewest."""
        waiting = [task for task in self._tasks.values() if task.number not in self._workers]
        available = list(workers) if waiting else []
        for task in waiting if available else []:
            worker = self._workers[task.number] = min(available, key=self.count)
            yield worker, FileOrder(task.number, task.work)

    def count(self, worker: Worker) -> int:
        """Return how many tasks a worker has."""
        return sum(one == worker for one in list(self._workers.values()))  # the watchdog asks, too

    def finish(self, result: FileResult) -> None:
        """Pass on the result of a task."""
        del self._workers[result.number]
        self._tasks.pop(result.number).finish(result)

    def remove_worker(self, worker: Worker, death: Death | None = None) -> None:
        """Take back the tasks of a worker that is gone; if it died, that is counted."""
        for number in [number for number, one in self._workers.items() if one == worker]:
            del self._workers[number]
            if death is not None:
                self._tasks[number].note_death(death)
