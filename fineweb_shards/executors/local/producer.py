"""Runs a source's listing in a thread, so that a slow disk, network or pipe never blocks the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

from fineweb_shards.errors import ShardError
from fineweb_shards.types import Batch


class Producer:
    """Keeps a few batches ready, ahead of their use. `wakeup` becomes readable when something has changed."""

    def __init__(self, batches: Iterator[Batch], ahead: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(ahead)
        self.wakeup, self._wakeup_sender = Pipe(duplex=False)
        self.ended = False  # every batch has been taken
        self.failure: Exception | None = None  # ... and then the listing failed
        self._stopped = False
        # A daemon: it may be blocked in a read of standard input for ever.
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def take(self) -> Batch | None:
        """Hand out the next batch, if there is one already."""
        while self.wakeup.poll():
            self.wakeup.recv_bytes()
        alive = self._thread.is_alive()  # asked first: what it put last is then in the queue
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            if not alive:
                self.ended, self.failure = True, ShardError("The listing of the input ended without a word.")
            return None
        if isinstance(item, Batch):
            return item
        self.ended = True
        if isinstance(item, Exception) or item is None:
            self.failure = item
        else:  # SystemExit and its kind would end more than the listing, without a sentence
            self.failure = ShardError(f"The listing of the input failed: {item!r}")
        return None

    def stop(self) -> None:
        """Let the thread end at its next batch."""
        self._stopped = True
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for batch in self._batches:
                self._put(batch)
                if self._stopped:
                    return
        except BaseException as error:  # the executor raises it in its turn
            end = error
        self._put(end)

    def _put(self, item: Batch | BaseException | None) -> None:
        self._queue.put(item)
        self._wakeup_sender.send_bytes(b"!")
