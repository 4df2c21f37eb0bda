"""Test doubles: an executor without processes, and calls that fail on a script."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import ChooseListing, Executor, InProcessPlane, Lane, Result, choose_first, completed
from fineweb_shards.executors.encode_batch import encode_batch
from fineweb_shards.executors.messages import FileWork, WorkOrder
from fineweb_shards.sources.source import Parts
from fineweb_shards.stream.section import NO_POSITIONS
from fineweb_shards.system.retry import Clock
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement, Tokens


class AtOncePlane(InProcessPlane):
    """Without threads, so that it is certain what is recorded when."""

    def _start(self, call: Callable[[], Result]) -> Future[Result]:
        return completed(call())


class InlineExecutor(Executor):
    """Does everything at once in this process: the same work as a worker's, without starting any."""

    def __init__(self, source: Parts, encoder: Encoder | TokenJoiner, plane: AtOncePlane | None = None) -> None:
        self._source = source
        self._encoder = encoder
        self._plane = plane

    def __exit__(self, *exception: object) -> None:
        """As the end of the processes would, close all files."""
        if self._plane is not None:
            self._plane.close()

    @property
    def workers(self) -> int:
        return 0

    @property
    def used_bytes(self) -> int:
        return 0

    @property
    def peak_bytes(self) -> int:
        return 0

    def encode(
        self,
        listings: Sequence[Iterator[Batch]],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
        choose: ChooseListing = choose_first,
    ) -> Generator[EncodedBlock]:
        lanes = {number: Lane() for number in range(len(listings))}
        try:
            while lanes:
                lane, _ = choose(lanes)
                batch = next(listings[lane], None)
                if batch is None:
                    del lanes[lane]
                    if len(listings) > 1:
                        nothing = np.empty(0, self._encoder.vocabulary.dtype), NO_POSITIONS
                        yield EncodedBlock(None, None, *nothing, part=lane, ends_part=True)
                    continue
                lanes[lane].output_bytes += batch.size_bytes
                for _, block in encode_batch(self._source, self._encoder, WorkOrder(batch), lambda one: None):
                    yield block
        finally:
            self._source.close()

    def place(
        self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True
    ) -> list[Future[None]]:
        assert not isinstance(tokens, HeldTokens)
        if not placements:
            return []
        assert self._plane is not None
        return self._plane.place(tokens, placements)

    def _finish_file(self, work: FileWork) -> Future[Any]:
        assert self._plane is not None
        return self._plane._finish_file(work)

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        return future.result(timeout=0)


class Listener(Observer):
    """Remembers everything it is told, from any thread."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waits: list[tuple[str, str | None]] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self.waits.append((cause, reason))

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


class FakeClock(Clock):
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds

    def wall(self, ahead_seconds: float = 0.0) -> str:
        minutes = 2 * 60 + 13 + round((self.seconds + ahead_seconds) / 60)
        return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


class FailingCall:
    """Wraps a function so that its `failing`-th call (from 1) raises an OSError instead."""

    def __init__(self, function: Callable[..., object], failing: int, code: int = errno.EIO) -> None:
        self._function = function
        self._failing = failing
        self._code = code
        self.calls = 0

    def __call__(self, *arguments: object, **named: object) -> object:
        self.calls += 1
        if self.calls == self._failing:
            raise OSError(self._code, os.strerror(self._code))
        return self._function(*arguments, **named)
