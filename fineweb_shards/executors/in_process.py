"""Do the data plane's work in this process: for an export, whose tokens come from finished files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from fineweb_shards.events import Observer
from fineweb_shards.executors.base import DataPlane, Result
from fineweb_shards.executors.token_writer import TokenWriter
from fineweb_shards.system.background import in_background
from fineweb_shards.types import KeptTokens, Placement, Tokens


class InProcessPlane(DataPlane):
    """Writes at once. Other work, such as hashing a file, goes on in threads."""

    def __init__(self, writer: TokenWriter, observer: Observer | None = None) -> None:
        self._writer = writer
        self._observer = observer or Observer()

    @property
    def workers(self) -> int:
        return 0

    def place(self, tokens: Tokens | KeptTokens, placements: Sequence[Placement]) -> list[Future[None]]:
        assert not isinstance(tokens, KeptTokens), "nobody else keeps tokens here"
        for placement in placements:
            self._writer.write(tokens, placement)
        return [completed(None) for _ in placements]

    def run(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        return in_background(partial(function, self._observer, *arguments))

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        return future.result(longest_seconds)


def completed(result: Result) -> Future[Result]:
    """Return a future that is done."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future
