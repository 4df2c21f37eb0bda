"""What a run, and whoever watches it, know of an executor: batches in, their blocks out, in order.

Where the work is done is each implementation's own business. `local/` has worker processes on this machine.
The rules that are the same everywhere (order, window, retries, quarantine) are in schedule.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from fineweb_shards.types import Batch, EncodedBlock


class Executor(ABC):
    """Tokenizes for one run. A context manager: the workers that entering it starts end with it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End every worker, whatever it is doing."""

    @abstractmethod
    def encode(self, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
        """Yield the blocks of all batches, in the batches' order."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many are at work now."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """The memory of all processes of the run at the last look; 0 where it can't be measured."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """The most that was seen of `used_bytes`."""
