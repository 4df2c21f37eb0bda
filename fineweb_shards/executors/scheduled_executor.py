"""What executors with a schedule share: list batches, give them out, yield their blocks in order.

Everything happens in the caller's thread, inside `encode` and `wait`. A subclass gives out what there is to
do (`_give_out`), and waits until something has happened (`_listen`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic

import numpy as np

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import Executor, Result
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.file_tasks import FileWork
from fineweb_shards.executors.prefetch import MaxTokensCutoff, Producer
from fineweb_shards.executors.schedule import Schedule, Worker
from fineweb_shards.executors.task import Death, Task
from fineweb_shards.sources.parts import Parts
from fineweb_shards.store.sidecars import FinishedFile
from fineweb_shards.store.store import Segment
from fineweb_shards.stream.boundaries import NO_POSITIONS
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, Quarantined


class Waits:
    """What workers wait for: the observer is told when the first wait for a cause begins and the last ends.
    A worker is any hashable handle."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._reasons: dict[str, dict[Hashable, str]] = {}  # by cause and worker

    def note(self, worker: Hashable, cause: str, reason: str | None) -> None:
        """Note that a worker waits, or that it does no longer."""
        reasons = self._reasons.setdefault(cause, {})
        if reason is None:
            reasons.pop(worker, None)
        else:
            reasons[worker] = reason
        self._observer.set_wait(cause, next(iter(reasons.values()), None))

    def end(self, worker: Hashable) -> None:
        """Note that a worker has ended, however it did."""
        for cause in [cause for cause, reasons in self._reasons.items() if worker in reasons]:
            self.note(worker, cause, None)

    def waits(self, worker: Hashable) -> bool:
        """Return whether a worker waits for anything. May be called from any thread."""
        return any(worker in reasons for reasons in list(self._reasons.values()))


class ScheduledExecutor(Executor, Generic[Worker]):
    """Has the batches of a schedule done by workers of any kind."""

    def __init__(
        self,
        spec: WorkerSpec,
        window_bytes: int,
        queued_batches: int,
        quarantined: Iterable[Quarantined],
        observer: Observer | None,
    ) -> None:
        self._spec = spec
        self._observer = observer or Observer()
        self._waits = Waits(self._observer)
        unreadable = partial(replace_unreadable, spec.source)
        self._schedule: Schedule[Worker] = Schedule(window_bytes, queued_batches, unreadable, quarantined)
        self._producer: Producer | None = None
        self._cutoff = MaxTokensCutoff(lambda: None)

    @abstractmethod
    def _give_out(self) -> None:
        """Give out what there is to do."""

    @abstractmethod
    def _listen(self) -> None:
        """Wait until something has happened, but not for long, and handle it."""

    @abstractmethod
    def _wake(self) -> None:
        """End a wait in `_listen`, from another thread: there is another batch."""

    @abstractmethod
    def _finish_file(self, work: FileWork) -> Future[Any]:
        """Have a file finished by some worker."""

    @property
    @abstractmethod
    def _ahead(self) -> int:
        """How many batches to list ahead."""

    def seal(self, segment: Segment) -> Future[str]:
        return self._finish_file(segment)

    def write_sidecars(self, file: FinishedFile) -> Future[None]:
        return self._finish_file(file)

    def encode(
        self,
        batches: Iterator[Batch],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
    ) -> Generator[EncodedBlock]:
        self._cutoff = MaxTokensCutoff(wanted_tokens)
        producer = self._producer = Producer(batches, self._ahead, self._wake)
        try:
            while True:
                self._give_out()
                if self._schedule.has_output:
                    yield from self._schedule.take_output()
                elif self._schedule.is_empty and producer.ended:
                    if producer.failure is not None:
                        raise producer.failure
                    return
                else:
                    on_idle()
                    self._listen()
        finally:
            self._abandon_output()
            self._producer = None
            producer.stop()

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        until = None if longest_seconds is None else time.monotonic() + longest_seconds
        while not future.done():
            if until is not None and time.monotonic() > until:
                raise TimeoutError
            self._give_out()
            self._listen()
        return future.result()

    def _abandon_output(self) -> None:
        """Give up what was not output: the stream ends before it."""
        self._schedule.abandon_output()

    def _take_batch(self) -> bool:
        """Add the next batch of the listing to the schedule, if there is one now, and if it is needed."""
        schedule = self._schedule
        if not schedule.is_empty and self._cutoff.is_met_by(schedule.waiting_bytes, schedule.output_bytes):
            return False
        batch = None if self._producer is None or self._producer.ended else self._producer.take()
        if batch is not None:
            schedule.add(batch)
        return batch is not None


def replace_unreadable(source: Parts, task: Task, death: Death) -> EncodedBlock | WorkerError:
    """Return the error that ends the run or, with `--on-bad-file skip`, an empty block that reports it.
    `death` is that of the last worker."""
    batch, file = task.batch, source.file_of(task.batch)
    settings = source.of(batch).settings
    sentence = (
        f"{file.path}: {task.deaths} workers died while they read the batch at position {batch.position}; "
        f"the last one {death.description}."
    )
    # Skip it only if a resume can start after it; otherwise a resume might find the batch readable.
    whole = batch.rows is None and not (
        batch.starts_mid_document or batch.ends_mid_document or batch.starts_at_seam or task.received
    )
    if task.stuck or not (settings.skip_bad and whole):  # stuck: a disk may have been away for a while
        return WorkerError(sentence)
    nothing = np.empty(0, settings.vocabulary.dtype), NO_POSITIONS
    start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
    note = (f"left out: {sentence}",)
    return EncodedBlock(start, end, *nothing, counts=Counts(bad_parts=1), problems=note, part=batch.part)
