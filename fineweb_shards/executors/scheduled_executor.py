"""What executors with a schedule share: list batches, give them out, yield their blocks in order.

What is listed, given out and fetched ahead of its use is bounded (`Producer`, `MaxTokensCutoff`, `AdaptivePrefetch`).

Everything happens in the caller's thread, inside `encode` and `wait`. A subclass gives out what there is to do
(`_give_out`), and waits until something has happened (`_listen`).
"""

from __future__ import annotations

import queue
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Self

import numpy as np

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import Executor, Result
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.messages import FileWork
from fineweb_shards.executors.schedule import Schedule
from fineweb_shards.executors.task import Death, Task, Worker
from fineweb_shards.sources.source import Parts
from fineweb_shards.store.sidecars import FinishedFile
from fineweb_shards.store.store import Segment
from fineweb_shards.stream.boundaries import NO_POSITIONS
from fineweb_shards.system.background import in_background
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, Quarantined

# Before anything is measured: a token of English has 4.6 bytes, so this is rather too much than too little.
_BYTES_PER_TOKEN = 6
_MARGIN = 1.25

FEWEST_BATCHES = 2  # a worker gets its next batch before it has finished the last
FIRST_REMOTE_BATCHES = 8
MOST_BATCHES = 16
# Long enough for every worker to have finished some batches.
_INTERVAL_SECONDS = 1.0
_BATCHES_PER_WORKER = 2
# The share of their time for which workers wait.
_TOO_MUCH_WAITING = 0.03
_LITTLE_WAITING = 0.005
_WORTHWHILE_GAIN = 1.05
_TRY_AGAIN_SECONDS = 60.0


class Producer:
    """Lists batches in a thread, so that a slow disk, network or pipe never blocks the run, and keeps up to `ahead` of
    them ready. `wake` is called, in the thread, for each batch and for the end.

    Not a `queue.Queue`, whose lock is taken in Python: a signal handler that raises in the middle of that leaves it
    locked, and whoever wants to stop the thread then waits for ever. A SimpleQueue is taken in C.
    """

    def __init__(self, batches: Iterator[Batch], ahead: int, wake: Callable[[], object]) -> None:
        self._batches = batches
        self._wake = wake
        self._queue: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()  # in it that are free
        for _ in range(ahead):
            self._places.put(None)
        self.ended = False  # every batch has been taken
        self.failure: BaseException | None = None  # the error with which the listing ended, if any
        self._stopped = False
        # Its thread is a daemon, because it may be blocked for ever in a read of standard input.
        self._listing = in_background(self._run)
        self._listing.add_done_callback(lambda _: wake())

    def take(self) -> Batch | None:
        """Return the next batch, or None if there is none yet, or none any more (`ended`)."""
        is_complete = self._listing.done()  # asked first: if it has ended, its last batch is in the queue
        try:
            batch = self._queue.get_nowait()
        except queue.Empty:
            if not is_complete:
                return None
        else:
            self._places.put(None)
            return batch
        self.ended, self.failure = True, self._listing.exception()
        if not isinstance(self.failure, Exception | None):
            # SystemExit and the like: raised as they are, they would end the program without a message.
            self.failure = ShardError(f"The listing of the input failed: {self.failure!r}")
        return None

    def stop(self) -> None:
        """Make the thread end at its next batch."""
        self._stopped = True
        self._places.put(None)

    def _run(self) -> None:
        for batch in self._batches:
            self._places.get()
            if self._stopped:
                return
            self._queue.put(batch)
            self._wake()


class MaxTokensCutoff:
    """Says when the batches under way suffice for `--max-tokens`: what is given out beyond that is fetched and encoded
    for nothing, and bytes out of a bucket cost money. `wanted_tokens` returns how many tokens are still missing; None
    if there is no limit. How many tokens a byte makes is measured: a condition on documents, or limits of length, may
    leave few of them."""

    def __init__(self, wanted_tokens: Callable[[], int | None]) -> None:
        self._wanted_tokens = wanted_tokens
        self._first = wanted_tokens()

    def is_met_by(self, waiting_bytes: int, output_bytes: int) -> bool:
        """Return whether batches of `waiting_bytes` will probably make all that is missing, as those of `output_bytes`
        made what is there."""
        wanted = self._wanted_tokens()
        if wanted is None or self._first is None:
            return False
        made = self._first - wanted
        if output_bytes and not made:  # nothing was kept so far
            return False
        bytes_per_token = output_bytes / made if output_bytes else _BYTES_PER_TOKEN
        return waiting_bytes >= _MARGIN * wanted * bytes_per_token


class AdaptivePrefetch:
    """Says how many batches a worker may have at once (`batches`), by what workers report at the end of each. A worker
    fetches all its batches at the same time, each over a connection of its own, and encodes them one after the other.
    Two are enough where bytes come from a disk. A single connection to a CDN is slow on a long line, so from the hub a
    worker begins with several. While workers wait for bytes they get more, as long as that brings more bytes; while
    nobody waits they get fewer, because what is fetched ahead takes memory. It has no clock: the caller says what time
    it is."""

    def __init__(self, workers: int, *, is_remote: bool) -> None:
        self.batches = FIRST_REMOTE_BATCHES if is_remote else FEWEST_BATCHES
        self._workers = workers
        self._is_remote = is_remote
        self._began: float | None = None
        self._done = 0
        self._fetched_bytes = 0
        self._waited_seconds = 0.0
        self._before: tuple[int, float] | None = None  # fewer batches, and the bytes/s with them
        self._try_again_at = 0.0

    def note_batch(self, fetched_bytes: int, waited_seconds: float, now: float) -> None:
        """Take note of a finished batch: what was fetched since the one before, and how long was waited."""
        if not self._is_remote:
            return
        if self._began is None:
            self._began = now
        self._done += 1
        self._fetched_bytes += fetched_bytes
        self._waited_seconds += waited_seconds
        seconds = now - self._began
        if seconds < _INTERVAL_SECONDS or self._done < _BATCHES_PER_WORKER * self._workers:
            return
        waiting = self._waited_seconds / (seconds * self._workers)
        speed = self._fetched_bytes / seconds
        self._began, self._done, self._fetched_bytes, self._waited_seconds = now, 0, 0, 0.0
        before, self._before = self._before, None
        if before is not None and waiting > _TOO_MUCH_WAITING and speed < _WORTHWHILE_GAIN * before[1]:
            # The line is full, or the hub is slow: more connections only take memory.
            self.batches, self._try_again_at = before[0], now + _TRY_AGAIN_SECONDS
        elif waiting > _TOO_MUCH_WAITING and now >= self._try_again_at and self.batches < MOST_BATCHES:
            self._before = self.batches, speed
            self.batches = min(MOST_BATCHES, self.batches * 3 // 2)
        elif waiting < _LITTLE_WAITING:
            self.batches = max(FEWEST_BATCHES, self.batches - 1)


class Waits:
    """What workers wait for: the observer is told when the first wait for a cause begins and the last ends. A worker is
    any hashable handle."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._reasons: dict[str, dict[Hashable, str]] = {}  # by cause and worker

    def note(self, worker: Hashable, cause: str, reason: str | None) -> None:
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
        self._ahead = 1  # how many batches to list ahead

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # perhaps interrupted: the workers that were started are ended
            self.__exit__()
            raise
        return self

    @abstractmethod
    def _start(self) -> None:
        """Start the workers."""

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
    """Return the error that ends the run or, with `--on-bad-file skip`, an empty block that reports it. `death` is that
    of the last worker."""
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
