"""The base of executors with a schedule: list batches, assign them to workers, yield their blocks in order.

`Producer` and `is_enough` bound how far ahead batches are listed, assigned and fetched.

Everything happens in the caller's thread, inside `encode` and `wait`. A subclass assigns work (`_give_out`) and waits
for events (`_listen`).
"""

from __future__ import annotations

import contextlib
import queue
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, Self

import numpy as np

from fineweb_shards.errors import InputError, ShardError, WorkerError
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import ChooseListing, Executor, Result, choose_first
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.messages import MOST_HELD_BYTES
from fineweb_shards.executors.schedule import Schedule
from fineweb_shards.executors.task import Death, Task, Worker
from fineweb_shards.storage.place import HUB
from fineweb_shards.stream.section import NO_POSITIONS
from fineweb_shards.system.background import in_background
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, Quarantined
from fineweb_shards.units import show_bytes

# Until a ratio is measured. English has 4.6 bytes per token: better to estimate too many than too few.
_BYTES_PER_TOKEN = 6
_MARGIN = 1.25

# The most one worker may have: it gets its next batch before it has finished the last. From a network it fetches all
# of them in parallel, each over a separate connection, because a single one is slow over long distances.
BATCHES = 2
REMOTE_BATCHES = 8


class Producer:
    """Lists batches in a thread, so that a slow disk, network or pipe never blocks the run, and keeps up to `ahead` of
    them ready. The thread calls `wake` for each batch and at the end.

    A `queue.Queue` would take its lock in Python: a signal handler that raises meanwhile leaves it locked, and stopping
    the thread then blocks forever. SimpleQueue takes its lock in C.
    """

    def __init__(self, batches: Iterator[Batch], ahead: int, wake: Callable[[], object]) -> None:
        self._batches, self._wake = batches, wake
        self._queue: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()  # an item for each free place in the queue
        for _ in range(ahead):
            self._places.put(None)
        self.ended = False  # every batch has been taken
        self.failure: BaseException | None = None  # the error that ended the listing, if any
        self._stopped = False
        # A daemon thread, because a read of standard input may block forever.
        self._listing = in_background(self._run)
        self._listing.add_done_callback(lambda _: wake())

    def take(self) -> Batch | None:
        """Return the next batch; None if none is ready or the listing has `ended`."""
        is_complete = self._listing.done()  # check this first: then the last batch is in the queue
        with contextlib.suppress(queue.Empty):
            batch = self._queue.get_nowait()
            self._places.put(None)
            return batch
        if is_complete:
            self.ended, self.failure = True, self._listing.exception()
            if not isinstance(self.failure, Exception | None):
                # SystemExit and the like would end the program without a message.
                self.failure = ShardError(f"The listing of the input failed: {self.failure!r}")
        return None

    def end(self, failure: Exception) -> None:
        self.ended, self.failure = True, failure
        self.stop()

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


def is_enough(wanted_tokens: int, made_tokens: int, waiting_bytes: int, output_bytes: int) -> bool:
    """Return whether batches of `waiting_bytes` will probably yield all tokens that `--max-tokens` still wants, if
    those of `output_bytes` have made `made_tokens`. Fetching more would waste time and, from a bucket, money. The bytes
    per token are measured, because a filter or length limits may drop most documents."""
    if output_bytes and not made_tokens:  # no document was kept so far
        return False
    bytes_per_token = output_bytes / made_tokens if output_bytes else _BYTES_PER_TOKEN
    return waiting_bytes >= _MARGIN * wanted_tokens * bytes_per_token


class Waits:
    """Tracks the waits of workers: tells the observer when the first one for a cause begins and the last one ends."""

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
        for cause in [cause for cause, reasons in self._reasons.items() if worker in reasons]:
            self.note(worker, cause, None)

    def waits(self, worker: Hashable) -> bool:
        """Return whether a worker waits for anything. Thread-safe."""
        return any(worker in reasons for reasons in list(self._reasons.values()))


class ScheduledExecutor(Executor, Generic[Worker]):
    """Runs a schedule with workers of any kind."""

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
        self._is_mix = False
        self._schedule: Schedule[Worker] = Schedule(window_bytes, queued_batches, self._replace_unreadable, quarantined)
        self._producers: dict[int, Producer] = {}  # of the unfinished listings
        self._failures: dict[int, BaseException] = {}  # of listings that can't be read further
        self._choose: ChooseListing = choose_first
        self._wanted_tokens: Callable[[], int | None] = lambda: None  # by the caller
        self._first_wanted: int | None = None  # what it wanted at first
        self._ahead = 1  # how many batches to list ahead, over all listings

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # even an interrupt must end the workers started so far
            self.__exit__()
            raise
        return self

    @abstractmethod
    def _start(self) -> None:
        """Start the workers."""

    @abstractmethod
    def _give_out(self) -> None:
        """Assign work to workers."""

    @abstractmethod
    def _listen(self) -> None:
        """Wait briefly for events, and handle them."""

    @abstractmethod
    def _wake(self) -> None:
        """End the wait in `_listen`, because a batch is ready. Called from another thread."""

    def encode(
        self,
        listings: Sequence[Iterator[Batch]],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
        choose: ChooseListing = choose_first,
    ) -> Generator[EncodedBlock]:
        self._wanted_tokens, self._first_wanted = wanted_tokens, wanted_tokens()
        self._choose, self._is_mix = choose, len(listings) > 1
        ahead = max(1, self._ahead // len(listings))
        producers = {lane: Producer(batches, ahead, self._wake) for lane, batches in enumerate(listings)}
        self._producers, self._failures = dict(producers), {}
        try:
            while producers:
                self._give_out()
                if (lane := self._schedule.output_lane) is not None:
                    try:
                        yield from self._schedule.take_output()
                    except ShardError as error:
                        self._fail(lane, error)
                    continue
                ended = [lane for lane, one in producers.items() if one.ended and self._schedule.was_output(lane)]
                for lane in ended:
                    if (failure := producers[lane].failure) is not None:
                        self._fail(lane, failure)
                # An error ends the run only when the stream needs the listing that can't be read.
                lane, awaited = self._choose({lane: self._schedule.lanes[lane] for lane in producers})
                if awaited and lane in self._failures:
                    raise self._failures[lane]
                ended = [lane for lane in ended if lane not in self._failures]
                if not ended:
                    on_idle()
                    self._listen()
                for lane in ended:
                    del producers[lane]
                    if self._is_mix:
                        nothing = np.empty(0, self._spec.vocabulary.dtype), NO_POSITIONS
                        yield EncodedBlock(None, None, *nothing, part=lane, ends_part=True)
        finally:
            self._abandon_output()
            self._producers = {}
            for producer in producers.values():
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
        """Give up all work that was not output, because the stream ends here."""
        self._schedule.abandon_output()

    def _fail(self, lane: int, error: BaseException) -> None:
        """Note that a listing can't be read beyond the blocks already yielded."""
        self._failures.setdefault(lane, error)
        self._producers.pop(lane, None)
        self._schedule.abandon_lane(lane)

    def _next_lane(self) -> int | None:
        """Return the listing to read next; None if all have ended or no batch is needed now."""
        if not self._producers:
            return None
        schedule = self._schedule
        lane, awaited = self._choose({lane: schedule.lanes[lane] for lane in self._producers})
        if not schedule.needs_batch(lane, awaited=awaited):
            return None
        wanted, first = self._wanted_tokens(), self._first_wanted
        if wanted is None or first is None or (awaited and schedule.was_output(lane)):
            return lane
        waiting_bytes = sum(lane.waiting_bytes for lane in schedule.lanes.values())
        output_bytes = sum(lane.output_bytes for lane in schedule.lanes.values())
        return None if is_enough(wanted, first - wanted, waiting_bytes, output_bytes) else lane

    def _take_batch(self) -> bool:
        """Add the next batch to the schedule if one is ready and needed; return whether one was added."""
        while (lane := self._next_lane()) is not None:
            producer = self._producers[lane]
            if (batch := producer.take()) is not None:
                refusal = self._refuse_large(batch) if self._is_mix else None
                if refusal is None:
                    self._schedule.add(batch, lane)
                    return True
                producer.end(refusal)
            if not producer.ended:
                return False
            del self._producers[lane]
        return False

    def _refuse_large(self, batch: Batch) -> InputError | None:
        """Return an error if this batch of a mix is too large. Its worker would wait until its tokens are written,
        which in turn wait for documents of the other parts, perhaps on the same worker."""
        room = self._schedule.window_bytes
        most_bytes = batch.size_bytes * self._spec.vocabulary.dtype.itemsize  # if each byte is a token
        if batch.size_bytes <= room or most_bytes <= MOST_HELD_BYTES:
            return None
        file = self._spec.source.file_of(batch)
        what = "row group" if file.format == "parquet" else "the batch at position"
        hint = "Give more memory with --max-memory."
        if file.is_remote:
            local = "Use --download" if file.place == HUB else "Copy it to this machine"
            hint = f"{local}: a local file is read in slices. Or give more memory with --max-memory."
        return InputError(
            f"{file.path}: {what} {batch.position:,} has {show_bytes(batch.size_bytes)} of text. In a mix it has to "
            f"wait for the other parts, and the memory has room for {show_bytes(room)} of text in flight.",
            f"{hint} Rerun the same command to resume.",
        )

    def _replace_unreadable(self, task: Task, death: Death) -> EncodedBlock | WorkerError:
        """Return the error that ends the run or, with `--on-bad-file skip`, an empty block that reports it."""
        source, batch = self._spec.source, task.batch
        file, settings = source.file_of(batch), source.of(batch).settings
        sentence = (
            f"{file.path}: {task.deaths} workers died while reading the batch at position {batch.position}; "
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
