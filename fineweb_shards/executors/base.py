"""Define the interface of an executor: it takes batches and yields their blocks in the same order.

Where the work is done is up to the implementation; `local/` uses worker processes on this machine. The rules
that all executors share (order, window, retries, quarantine) are in schedule.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from fineweb_shards.types import Batch, EncodedBlock


class Executor(ABC):
    """Tokenizes for one run. As a context manager it starts its workers on entry and ends them on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End every worker, even in the middle of its work."""

    @abstractmethod
    def encode(self, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
        """Yield the blocks of all batches, in the batches' order."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of workers that exist now."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """The memory of all processes of the run when last measured; 0 if it can't be measured."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """The highest value of `used_bytes` so far."""
