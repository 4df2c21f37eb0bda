"""A torch dataset over ShardLoader's batches, divided among the ranks of a training run and DataLoader workers.

    from torch.utils.data import DataLoader
    from fineweb_shards.torch_dataset import ShardDataset

    dataset = ShardDataset("edu_fineweb10B", "train", batch_size=64, seq_len=1024, seed=0)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for x, y in loader:               # (64, 1024) each, the same order for any number of workers
            ...

The dataset yields whole batches, hence `batch_size=None`. A pass over it is one epoch, of the same length on every
rank. To resume within an epoch, use torchdata's StatefulDataLoader in place of DataLoader, or `dataset.set_epoch(epoch,
batches)` with the number of batches already taken. The settings are those of ShardLoader; with `follow=True` every
worker waits for the build separately, and the first pass ends when the build is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed
from torch.utils.data import IterableDataset
from torch.utils.data._utils.collate import default_collate_fn_map

from fineweb_shards.loader import ShardLoader
from fineweb_shards.loader.shard_loader import renamed_argument, torch_worker


class TensorBatch(NamedTuple):
    """A whole batch: `x, y = batch`."""

    x: Any
    y: Any


def _refuse_to_collate(batches: object, *, collate_fn_map: object = None) -> NoReturn:
    raise TypeError(
        "a ShardDataset yields whole batches, which the DataLoader would batch again: "
        "write DataLoader(dataset, batch_size=None), and the size in ShardDataset(…, batch_size=…)"
    )


default_collate_fn_map[TensorBatch] = _refuse_to_collate


class ShardDataset(IterableDataset):
    """The batches of one rank. `rank` and `world_size` default to those of torch.distributed or torchrun."""

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        split: str = "train",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are the other arguments of ShardLoader, such as `batch_size` and `seq_len`."""
        world_size = renamed_argument("ranks", settings.pop("ranks", None), world_size)
        if (rank is None) != (world_size is None):
            raise ValueError("pass both rank and world_size, or neither")
        if rank is None or world_size is None:
            rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._loader = ShardLoader(shards, split, rank=rank, world_size=world_size, framework="torch", **settings)
        # Epoch and batch, in shared memory, because persistent workers start only once but must see the next epoch.
        self._position = torch.zeros(2, dtype=torch.int64).share_memory_()
        # The same of a loaded state, and of the next batch once a pass has begun. Each DataLoader worker has its own.
        self._loaded: tuple[int, int] | None = None
        self._next: tuple[int, int] | None = None

    def set_epoch(self, epoch: int, batches: int = 0) -> None:
        """Choose the epoch of the next pass, and the number of its batches to skip. With a seed, every epoch has a
        different order; without this call all passes are epoch 0."""
        if epoch < 0 or batches < 0 or (batches and not self._loader.has_batch(epoch, batches - 1)):
            raise ValueError(f"epoch {epoch}, batch {batches}: the epoch has fewer batches, and both count from 0")
        self._position[0], self._position[1] = epoch, batches
        self._loaded = self._next = None

    def __len__(self) -> int:
        """Return the number of batches of the next pass on this rank; TypeError until a followed build is complete."""
        epoch, batches = self._start
        return self._loader.count_batches(epoch) - batches

    def __iter__(self) -> Iterator[TensorBatch]:
        (epoch, start), (worker, _) = self._start, torch_worker()
        self._loaded, self._next = None, (epoch, start + worker)
        return self._batches(epoch, start)

    def _batches(self, epoch: int, start: int) -> Iterator[TensorBatch]:
        worker, workers = torch_worker()
        for number, (x, y) in enumerate(self._loader.epoch_batches(epoch, start), 1):
            self._next = epoch, start + worker + number * workers
            yield TensorBatch(x, y)

    @property
    def _start(self) -> tuple[int, int]:
        """The epoch of the next pass, and the number of its batches, of all workers, to skip."""
        return self._loaded or (int(self._position[0]), int(self._position[1]))

    def state_dict(self) -> dict[str, Any]:
        """Return this process's position for torchdata's StatefulDataLoader, which asks each worker."""
        worker, workers = torch_worker()
        epoch, start = self._start
        epoch, number = self._next or (epoch, start + worker)
        place = {"epoch": epoch, "batch": number, "worker": worker, "workers": workers}
        return {**self._loader.state_dict(), **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next pass where `state` was saved; ValueError if shards, settings or workers differ. Another
        world_size is accepted as in ShardLoader."""
        here = dict(zip(("worker", "workers"), torch_worker(), strict=True))
        saved = {name: state.get(name) for name in here}
        if saved != here:
            raise ValueError(f"the state was saved in a DataLoader with {saved}, here it is {here}")
        self._loader.load_state_dict(state)
        self._loaded, self._next = (int(state["epoch"]), int(state["batch"]) - here["worker"]), None
