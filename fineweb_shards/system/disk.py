"""Wait for space on a full disk, up to a time limit, so that an overnight run does not end there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fineweb_shards.errors import DiskFullError
from fineweb_shards.events import Observer
from fineweb_shards.system.machine import free_disk_bytes
from fineweb_shards.system.retry import Clock, Retrier, TransientError
from fineweb_shards.units import show_bytes

Result = TypeVar("Result")

_LOOK_EVERY_SECONDS = 10.0


class Disk:
    """The disk that holds an output folder. Actions that fail for lack of space are tried again."""

    def __init__(
        self, folder: Path, max_wait_seconds: float, observer: Observer, clock: Clock | None = None
    ) -> None:
        self.max_wait_seconds = max_wait_seconds
        self._folder = folder
        self._retrier = Retrier(
            max_wait_seconds,
            observer,
            clock=clock,
            cause="disk",
            longest_wait_seconds=_LOOK_EVERY_SECONDS,
            error=DiskFullError,
        )

    def attempt(self, action: Callable[[], Result]) -> Result:
        """Repeat `action` while it raises DiskFullError, up to the time limit. It must be repeatable."""

        def once() -> Result:
            try:
                return action()
            except DiskFullError as error:
                raise TransientError(error.message.rstrip(".")) from error

        return self._retrier.call(once)

    def wait_for(self, needed_bytes: int) -> None:
        """Wait until `needed_bytes` are free; DiskFullError after the time limit."""

        def look() -> None:
            free = free_disk_bytes(self._folder)
            if free < needed_bytes:
                needed, missing = show_bytes(needed_bytes), show_bytes(needed_bytes - free)
                raise DiskFullError(
                    f"{self._folder}: the next shard needs {needed}, {show_bytes(free)} are free: "
                    f"{missing} are missing."
                )

        self.attempt(look)
