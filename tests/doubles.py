"""Test doubles: an executor without processes, and files that fail on a script."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from fineweb_shards.executors.worker import encode_batch
from fineweb_shards.sources.base import Source
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.types import Batch, EncodedBlock


class InlineExecutor:
    """Encodes in this process: the same work as a worker's, without starting any."""

    def __init__(self, source: Source, encoder: Encoder) -> None:
        self._source = source
        self._encoder = encoder

    def tell_waits_to(self, tell: Callable[[str | None], None]) -> None:
        pass

    def encode(self, batches: Iterator[Batch], notify: Callable[[str], None]) -> Iterator[EncodedBlock]:
        try:
            for batch in batches:
                yield from encode_batch(self._source, self._encoder, batch)
        finally:
            self._source.close()


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
