"""Bound what is listed, given out and fetched ahead of its use.

- `Producer` lists a source's batches in a thread, so that a slow disk, network or pipe never blocks the run.
- `MaxTokensCutoff` says when the batches under way suffice for `--max-tokens`: what is given out beyond that
  is fetched and encoded for nothing, and bytes out of a bucket cost money.
- `AdaptivePrefetch` says how many batches a worker may have at once. A worker fetches all its batches at the
  same time, each over a connection of its own, and encodes them one after the other. Two are enough where
  bytes come from a disk. A single connection to a CDN is slow on a long line, so from the hub a worker begins
  with several. While workers wait for bytes they get more, as long as that brings more bytes; while nobody
  waits they get fewer, because what is fetched ahead takes memory.
- `Prefetcher`, in a worker, has the source fetch a batch before it is read.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event, Observer
from fineweb_shards.sources.source import Parts
from fineweb_shards.types import Batch

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
    """Keeps up to `ahead` batches ready. `wake` is called, in the thread, for each batch and for the end."""

    def __init__(self, batches: Iterator[Batch], ahead: int, wake: Callable[[], object]) -> None:
        self._batches = batches
        self._wake = wake
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(ahead)
        self.ended = False  # every batch has been taken
        self.failure: Exception | None = None  # the error with which the listing ended, if any
        self._stopped = False
        # A daemon, because it may be blocked for ever in a read of standard input.
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def take(self) -> Batch | None:
        """Return the next batch, or None if there is none yet, or none any more (`ended`)."""
        alive = self._thread.is_alive()  # asked first: if it has ended, its last item is in the queue
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            if not alive:
                self.ended, self.failure = True, ShardError("The listing of the input ended unexpectedly.")
            return None
        if isinstance(item, Batch):
            return item
        self.ended = True
        if isinstance(item, Exception) or item is None:
            self.failure = item
        else:  # SystemExit and the like: raised as they are, they would end the program without a message
            self.failure = ShardError(f"The listing of the input failed: {item!r}")
        return None

    def stop(self) -> None:
        """Make the thread end at its next batch."""
        self._stopped = True
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        """Put all batches into the queue, then None or the error: the thread's main function."""
        end: BaseException | None = None
        try:
            for batch in self._batches:
                self._put(batch)
                if self._stopped:
                    return
        except BaseException as error:  # the executor raises it after the last batch
            end = error
        self._put(end)

    def _put(self, item: Batch | BaseException | None) -> None:
        self._queue.put(item)
        self._wake()


class MaxTokensCutoff:
    """`wanted_tokens` returns how many tokens are still missing; None if there is no limit. How many tokens a
    byte makes is measured: a condition on documents, or limits of length, may leave few of them."""

    def __init__(self, wanted_tokens: Callable[[], int | None]) -> None:
        self._wanted_tokens = wanted_tokens
        self._first = wanted_tokens()

    def is_met_by(self, waiting_bytes: int, output_bytes: int) -> bool:
        """Return whether batches of `waiting_bytes` will probably make all that is missing, as those of
        `output_bytes` made what is there."""
        wanted = self._wanted_tokens()
        if wanted is None or self._first is None:
            return False
        made = self._first - wanted
        if output_bytes and not made:  # nothing was kept so far
            return False
        bytes_per_token = output_bytes / made if output_bytes else _BYTES_PER_TOKEN
        return waiting_bytes >= _MARGIN * wanted * bytes_per_token


class AdaptivePrefetch:
    """The number of batches for each worker, `batches`, by what they report at the end of each batch. It has
    no clock: the caller says what time it is."""

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
        if seconds >= _INTERVAL_SECONDS and self._done >= _BATCHES_PER_WORKER * self._workers:
            waiting = self._waited_seconds / (seconds * self._workers)
            self._decide(waiting, self._fetched_bytes / seconds, now)
            self._began, self._done, self._fetched_bytes, self._waited_seconds = now, 0, 0, 0.0

    def _decide(self, waiting: float, speed: float, now: float) -> None:
        before, self._before = self._before, None
        if before is not None and waiting > _TOO_MUCH_WAITING and speed < _WORTHWHILE_GAIN * before[1]:
            # The line is full, or the hub is slow: more connections only take memory.
            self.batches, self._try_again_at = before[0], now + _TRY_AGAIN_SECONDS
        elif waiting > _TOO_MUCH_WAITING and now >= self._try_again_at and self.batches < MOST_BATCHES:
            self._before = self.batches, speed
            self.batches = min(MOST_BATCHES, self.batches * 3 // 2)
        elif waiting < _LITTLE_WAITING:
            self.batches = max(FEWEST_BATCHES, self.batches - 1)


class Prefetcher:
    """Fetches batches of a source ahead. What fails is only reported, once: reading it will tell."""

    def __init__(self, source: Parts, observer: Observer) -> None:
        self._source = source
        self._observer = observer
        self._reported: set[str] = set()

    def prefetch(self, batch: Batch) -> None:
        """Begin to fetch a batch. Raises MemoryError only: a batch that can't be fetched may be readable."""
        try:
            self._source.prefetch(batch)
        except MemoryError:
            raise
        except Exception as error:
            if repr(error) not in self._reported:
                self._reported.add(repr(error))
                name = self._source.file_of(batch).name
                text = f"{name}: could not be fetched ahead: {describe_error(error)}"
                self._observer.tell(Event("worker", text))
