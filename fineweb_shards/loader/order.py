"""Define what an order of batches is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Order(ABC):
    """Which tokens are in which batch of which epoch, for one rank.

    It is a function of the shards and the settings alone. Shards that a build adds come behind the others, so
    that all ranks, and all workers of a DataLoader, have the same order whenever they see a new one.
    """

    # Whether the rows of all ranks together depend on ranks x batch_size only, not on each of the two.
    any_ranks: ClassVar[bool] = False

    @abstractmethod
    def has(self, epoch: int, number: int) -> bool:
        """Return whether an epoch has a batch of this number, on all ranks. May wait for a build."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """Return how many batches an epoch has. Waits for the end of a build."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        """Return inputs and targets of a batch, for which `has` was true."""
