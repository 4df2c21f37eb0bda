"""Keep the futures of what workers were told to write, block by block. No I/O."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from fineweb_shards.errors import ShardError
from fineweb_shards.types import HeldTokens


class Writes:
    """The placements that are not written yet. A block's placements are written in their order."""

    def __init__(self) -> None:
        self._futures: dict[tuple[int, int], deque[Future[None]]] = {}  # by batch and block

    def begin(self, tokens: HeldTokens, placements: int) -> list[Future[None]]:
        """Return a future for each placement of a block."""
        futures: list[Future[None]] = [Future() for _ in range(placements)]
        self._futures[tokens.batch, tokens.block] = deque(futures)
        return futures

    def finish_next(self, batch: int, block: int) -> None:
        """Note that the next placement of a block is written."""
        written = self._futures[batch, block].popleft()
        if not written.done():  # another worker may have failed to write it, and died
            written.set_result(None)

    def fail_next(self, batch: int, block: int, error: ShardError) -> None:
        """Note that the next placement of a block can't be written."""
        unwritten = self._futures[batch, block][0]
        if not unwritten.done():
            unwritten.set_exception(error)

    def drop(self, batch: int, block: int) -> None:
        """Forget a block. It may have been forgotten before: a block can be made twice."""
        self._futures.pop((batch, block), None)
