"""`ShardLoader`: the batches of one rank, in order, with a position that can be saved.

The order is:

- without a seed, that of build-nanogpt's DataLoaderLite, on every rank; shards that are too short, which crash
  DataLoaderLite, are skipped;
- with `align="document"`, rows of `seq_len` tokens that begin at a document, in file order;
- with a seed, shuffled shards and the shuffled rows of each; with `shuffle="documents"` the shuffled documents of each
  shard, which are then cut into rows.

With a seed every epoch has a different order. It is the same on all ranks: no two ranks see the same row, and a row
occurs at most once per epoch (the last few may not fill a batch on all ranks). Every rank has the same number of
batches per epoch; DataLoaderLite's extra batches of some ranks are left out, so that no rank waits for another.

Shards are memory-mapped, not loaded; those in a bucket are fetched first (shard_cache.py). The boundaries of rows and
documents of two shards are in memory, about 60 bytes each; files of more than 134M tokens count as several shards where
documents are needed.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fineweb_shards.errors import InputError
from fineweb_shards.loader.order import Order, RowOrder, SequentialOrder
from fineweb_shards.loader.shard_cache import DEFAULT_BYTES, ShardCache
from fineweb_shards.loader.shards import FollowedShards, LoaderSettings, Shuffle, open_folder, open_shards
from fineweb_shards.reading.token_file import split_location

# The names of settings in earlier versions, whose states are still read.
_OLD_NAMES = {"length": "seq_len", "ranks": "world_size"}


class ShardLoader:
    """An endless sequence of batches. `epoch` counts completed passes, `len` is the length of one."""

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        split: str = "train",
        *,
        batch_size: int,
        seq_len: int | None = None,
        rank: int = 0,
        world_size: int | None = None,
        seed: int | None = None,
        shuffle: Shuffle = "rows",
        align: Literal["document"] | None = None,
        eot: int | None = None,
        follow: bool = False,
        patience_seconds: float = 600.0,
        cache_dir: str | Path | None = None,
        cache_bytes: int = DEFAULT_BYTES,
        framework: Literal["auto", "numpy", "torch"] = "auto",
        length: int | None = None,
        ranks: int | None = None,
    ) -> None:
        """Open the shards: all files with `split` in their name if `shards` is a folder, else these files.

        `seed` shuffles the rows of a shard or its documents, as `shuffle` says. With `align="document"` every row
        begins at a document; the rest of a row's last document is skipped. `eot` is the token that separates documents,
        needed only if it is not GPT-2's and no manifest beside the shards names it.

        With `follow=True` a build may still be running in the folder: `next_batch` waits for its next shard, and the
        first epoch ends when the build is complete. If no build runs for `patience_seconds`, InputError is raised.

        Shards may be in a bucket (`s3://bucket/folder`, or addresses of files): each is fetched into `cache_dir` (by
        default in the user's cache folder) shortly before it is read, and checked. The cache keeps up to `cache_bytes`
        of shards that are not being read, and may be shared by several processes. A shuffled shard has to fit in it.

        `length` and `ranks` are the old names of `seq_len` and `world_size`.
        """
        seq_len, world_size = renamed_argument("length", length, seq_len), renamed_argument("ranks", ranks, world_size)
        world_size = 1 if world_size is None else world_size
        if seq_len is None:
            raise TypeError("seq_len is missing: the number of tokens in a row")
        if min(batch_size, seq_len, world_size) < 1 or not 0 <= rank < world_size:
            raise ValueError("batch_size, seq_len and world_size must be at least 1, and rank below world_size")
        if align not in (None, "document") or shuffle not in ("rows", "documents"):
            raise ValueError('align must be None or "document", and shuffle "rows" or "documents"')
        if shuffle == "documents" and seed is None:
            raise ValueError('shuffle="documents" needs a seed')
        if follow and not isinstance(shards, (str, Path)):
            raise ValueError("follow=True needs a folder, not a list of files")
        if cache_bytes < 1:
            raise ValueError("cache_bytes must be at least 1")
        self._settings = LoaderSettings(batch_size, seq_len, world_size, seed, shuffle, align, eot, follow)
        self._torch = framework == "torch" or (framework == "auto" and find_spec("torch") is not None)
        self._name = shards if isinstance(shards, (str, Path)) else split_location(shards[0])[0] if shards else ""
        cache = ShardCache(cache_dir, cache_bytes)
        if not follow:
            self._shards = open_shards(shards, split, self._settings, cache)
        else:
            folder = open_folder(self._name, cache)
            self._shards = FollowedShards(folder, split, self._settings, patience_seconds, cache)
        if seed is not None:
            self._check_fits(cache_bytes)
        order = SequentialOrder if align is None and seed is None else RowOrder
        self._order: Order = order(self._shards, self._settings, rank)
        self._epoch, self._number = 0, 0  # of the next batch
        if not follow:
            self._check_not_empty(0)

    def count_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch; TypeError (as from `len`) until a followed build is complete."""
        if not self._shards.complete:
            raise TypeError("the number of batches is unknown until the build is complete")
        return self._order.count(epoch)

    def __len__(self) -> int:
        """Return the number of batches that every rank gets in the current pass over the shards.

        With `align="document"` the first call searches all shards for documents to count the rows. If documents are
        shuffled, too, the number varies slightly between epochs.
        """
        return self.count_batches(self._epoch)

    @property
    def epoch(self) -> int:
        """The number of completed passes. Waits for a followed build until it is known."""
        return self._epoch + (not self._order.has(self._epoch, self._number))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while True:
            yield self.next_batch()

    def next_batch(self) -> tuple[Any, Any]:
        """Return the next inputs and targets, int64, `batch_size` x `seq_len` each.

        After the last batch of an epoch comes the first of the next. In several workers of a torch DataLoader this is
        an error, because all would return the same batches: `ShardDataset` divides them.
        """
        if torch_worker()[1] > 1:
            raise RuntimeError(
                "a ShardLoader in several workers of a torch DataLoader would repeat each batch in every worker: "
                "use fineweb_shards.torch_dataset.ShardDataset, or num_workers=0"
            )
        if not self._order.has(self._epoch, self._number):
            self._check_not_empty(self._epoch + 1)
            self._epoch, self._number = self._epoch + 1, 0
        batch = self.batch(self._epoch, self._number)
        self._number += 1
        return batch

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of an epoch from number `start` on; in a worker of a torch DataLoader, its share. A
        DataLoader asks its workers in turn, so the order is the same for any number of them."""
        worker, workers = torch_worker()
        number = start + worker
        while self.has_batch(epoch, number):
            yield self.batch(epoch, number)
            number += workers

    def has_batch(self, epoch: int, number: int) -> bool:
        """Return whether an epoch has a batch of this number; wait while a followed build may add it."""
        return self._order.has(epoch, number)

    def batch(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Return one batch of an epoch by its number, counted from 0."""
        if not self.has_batch(epoch, number):
            raise IndexError(f"epoch {epoch} has no batch {number}")
        shape = self._settings.batch_size, self._settings.seq_len
        x, y = (rows.reshape(shape) for rows in self._order.batch(epoch, number))
        if not self._torch:
            return x, y
        torch = importlib.import_module("torch")  # only here: loading it is slow, and numpy alone is enough
        return torch.from_numpy(x), torch.from_numpy(y)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint. All ranks can resume from it after equally many steps."""
        shards = len(self._shards.known)
        return {
            "epoch": self._epoch,
            "batch": self._number,
            **asdict(self._settings),
            "shard_count": shards,
            "shards": self._digest(shards),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position; ValueError if it was saved with other shards or settings.

        With a seed or `align`, another world_size is accepted if world_size x batch_size is the same: a step of all
        ranks then has the same rows.
        """
        state = {_OLD_NAMES.get(name, name): value for name, value in state.items()}
        known = len(self._shards.known)
        # A followed build may have made more shards since, or this rank has not looked yet.
        shards = int(state.get("shard_count", known)) if self._settings.follow else known
        there = not shards or self._shards.has(shards - 1)
        here = {**asdict(self._settings), "shards": self._digest(shards) if there else "fewer"}
        total = int(state.get("world_size", 0)) * int(state.get("batch_size", 0))
        if self._order.any_world_size and total == here["world_size"] * here["batch_size"]:
            del here["world_size"], here["batch_size"]
        for name, value in here.items():
            if (saved := state.get(name)) != value:
                raise ValueError(f"the state was saved with {name} = {saved!r}, here it is {value!r}")
        self._epoch, self._number = int(state["epoch"]), int(state["batch"])

    def _digest(self, shards: int) -> str:
        """Return a hash of the names and lengths of the first shards."""
        labels = "\n".join(f"{one.file.name} {one.file.tokens}" for one in self._shards.known[:shards])
        return hashlib.sha256(labels.encode()).hexdigest()

    def _check_fits(self, cache_bytes: int) -> None:
        """Raise InputError if a shuffled shard in a bucket does not fit in the cache: its pieces would be fetched over
        and over."""
        for shard in self._shards.known:
            size_bytes = shard.file.end_bytes - shard.file.header_bytes
            if shard.bucket is not None and size_bytes > cache_bytes:
                raise InputError(
                    f"{shard.file.address}: with a seed all of its {size_bytes:,} bytes are read in random order, "
                    f"but cache_bytes is {cache_bytes:,}.",
                    "Set cache_bytes higher, or export it to a layout with smaller files.",
                )

    def _check_not_empty(self, epoch: int) -> None:
        """Raise InputError for an epoch without any batch, instead of looking for one forever."""
        if not self._order.has(epoch, 0):
            settings = self._settings
            raise InputError(
                f"{self._name}: no shard has a batch of {settings.batch_size} x {settings.seq_len} tokens "
                f"for each of {settings.world_size} ranks.",
                "Choose a smaller batch_size or seq_len.",
            )


def renamed_argument(old_name: str, old: int | None, new: int | None) -> int | None:
    """Return the value of a renamed argument; warn if the caller used its old name."""
    if old is None:
        return new
    if new is not None:
        raise TypeError(f"{old_name} is the old name of {_OLD_NAMES[old_name]}: pass {_OLD_NAMES[old_name]} alone")
    warnings.warn(f"{old_name} is deprecated: pass {_OLD_NAMES[old_name]}", DeprecationWarning, stacklevel=3)
    return old


def torch_worker() -> tuple[int, int]:
    """Return this process's number among the workers of a torch DataLoader, and their count; (0, 1) elsewhere."""
    data = sys.modules.get("torch.utils.data")  # loaded in every such worker
    info = data.get_worker_info() if data else None
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))
