"""List a source's batches in a thread, so that a slow disk, network or pipe never blocks the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from fineweb_shards.errors import ShardError
from fineweb_shards.types import Batch


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
