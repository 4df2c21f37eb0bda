"""Do the data plane's work in this process: for an export, whose tokens come from finished files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from fineweb_shards.events import Observer
from fineweb_shards.executors.base import DataPlane, Result
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.shard_files import TokenWriter, seal_segment
from fineweb_shards.store.sidecars import FinishedFile, write_sidecars
from fineweb_shards.store.store import Segment, Store
from fineweb_shards.system.background import in_background
from fineweb_shards.system.disk import Disk
from fineweb_shards.types import HeldTokens, Placement, Tokens


class InProcessPlane(DataPlane):
    """Writes at once; files are sealed in threads. `close` it in the end."""

    def __init__(self, store: Store, shard_format: ShardFormat, disk: Disk) -> None:
        self._store = store
        self._format = shard_format
        self._max_wait_seconds = disk.max_wait_seconds
        self._writer = TokenWriter(shard_format, disk)

    @property
    def workers(self) -> int:
        return 0

    def place(self, tokens: Tokens | HeldTokens, placements: Sequence[Placement]) -> list[Future[None]]:
        assert not isinstance(tokens, HeldTokens), "nobody else holds tokens here"
        return write_at_once(self._writer, tokens, placements)

    def seal(self, segment: Segment) -> Future[str]:
        arguments = segment, self._format, self._store, self._max_wait_seconds
        return self._start(partial(seal_segment, Observer(), *arguments))

    def write_sidecars(self, file: FinishedFile) -> Future[None]:
        return self._start(partial(write_sidecars, Observer(), file))

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        return future.result(longest_seconds)

    def close(self) -> None:
        """Close all files."""
        self._writer.close()

    def _start(self, call: Callable[[], Result]) -> Future[Result]:
        return in_background(call)


def write_at_once(writer: TokenWriter, tokens: Tokens, placements: Sequence[Placement]) -> list[Future[None]]:
    """Write tokens that are in this process; return futures that are done."""
    for placement in placements:
        writer.write(tokens, placement)
    return [completed(None) for _ in placements]


def completed(result: Result) -> Future[Result]:
    """Return a future that is done."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future
