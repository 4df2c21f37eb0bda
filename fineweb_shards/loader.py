"""A data loader for training code: gives batches of tokens from finished shards to rank r of n.

    from fineweb_shards.loader import ShardLoader

    loader = ShardLoader("edu_fineweb10B", "train", batch_size=64, length=1024, rank=0, ranks=8)
    x, y = loader.next_batch()            # (64, 1024) each; y is x shifted by one token
    checkpoint["loader"] = loader.state_dict()

Without a seed the batches are those of build-nanogpt's DataLoaderLite, on every rank; a shard that is too
short for it, where DataLoaderLite crashes, is skipped. With a seed, shards and windows (rows of `length`
tokens) are shuffled, differently in each epoch and with the same result on all ranks: no two ranks see the
same window, and a window comes at most once an epoch (the last few may not fill a batch on all ranks).

Every rank has the same number of batches in an epoch, `len(loader)`; after the last one `next_batch` begins
the next epoch. (DataLoaderLite gives some ranks a few more: they are left out, so that no rank waits for
another.) In the workers of a torch DataLoader use `ShardDataset` (torch_dataset.py), which divides the
batches among them; `next_batch` raises an error there, because every worker would give the same batches.

Shards are memory-mapped, not loaded. Only numpy is needed; if torch is installed, batches are torch tensors.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import InputError
from fineweb_shards.reading.token_file import DTYPES, TokenFile, open_token_file, token_files
from fineweb_shards.types import Dtype, Tokens

Rows = NDArray[np.int64]


class ShardLoader:
    """An endless sequence of batches. `epoch` counts the passes completed, `len` is the length of one."""

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        split: str = "train",
        *,
        batch_size: int,
        length: int,
        rank: int = 0,
        ranks: int = 1,
        seed: int | None = None,
        framework: Literal["auto", "numpy", "torch"] = "auto",
        dtype: str | None = None,
    ) -> None:
        """Open the shards: all files with `split` in their name if `shards` is a folder, else these files.

        `dtype` (a name of numpy's) is how wide tokens without a header are, if there is no manifest.
        """
        if min(batch_size, length, ranks) < 1 or not 0 <= rank < ranks:
            raise ValueError("batch_size, length and ranks must be at least 1, and rank below ranks")
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.files = _open(shards, split, DTYPES.get(dtype or ""))
        self._batch_size, self._length, self._rank, self._ranks = batch_size, length, rank, ranks
        self._seed = seed
        self._torch = framework == "torch" or (
            framework == "auto" and bool(importlib.util.find_spec("torch"))
        )
        self._order: _SequentialOrder | _ShuffledOrder = (
            _SequentialOrder(self.files, batch_size * length, rank, ranks)
            if seed is None
            else _ShuffledOrder(self.files, batch_size, length, rank, ranks, seed)
        )
        if not self.batches_per_epoch:
            raise InputError(
                f"{self.files[0].path.parent}: no shard holds a batch of {batch_size} x {length} tokens for "
                f"each of {ranks} ranks.",
                "Choose a smaller batch_size or length.",
            )
        self._batches = 0  # given out so far

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches that every rank gets in one pass over the shards."""
        return self._order.batches

    def __len__(self) -> int:
        return self.batches_per_epoch

    @property
    def epoch(self) -> int:
        return self._batches // self.batches_per_epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while True:
            yield self.next_batch()

    def next_batch(self) -> tuple[Any, Any]:
        """Return the next inputs and targets, int64, `batch_size` x `length` each."""
        if _torch_worker()[1] > 1:
            raise RuntimeError(
                "a ShardLoader in several workers of a torch DataLoader would give each batch several times: "
                "use fineweb_shards.torch_dataset.ShardDataset, or num_workers=0"
            )
        batch = self.batch(*divmod(self._batches, self.batches_per_epoch))
        self._batches += 1
        return batch

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of an epoch from number `start` on; in a worker of a torch DataLoader, its share.

        A DataLoader asks its workers in turn, so that the order is the same for any number of them.
        """
        worker, workers = _torch_worker()
        for number in range(start + worker, self.batches_per_epoch, workers):
            yield self.batch(epoch, number)

    def batch(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Return one batch of an epoch by its number, counted from 0."""
        x, y = (rows.reshape(self._batch_size, self._length) for rows in self._order.batch(epoch, number))
        if not self._torch:
            return x, y
        torch = importlib.import_module("torch")  # only here: loading it is slow, and numpy alone is enough
        return torch.from_numpy(x), torch.from_numpy(y)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint. It is the same on all ranks after equally many steps."""
        return {"batches": self._batches, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position; ValueError if it was saved with other shards or settings."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(
                    f"the state was saved with {name} = {state.get(name)!r}, here it is {value!r}"
                )
        self._batches = int(state["batches"])

    def _identity(self) -> dict[str, Any]:
        names = "\n".join(f"{file.path.name} {file.tokens}" for file in self.files)
        return {
            "batch_size": self._batch_size,
            "length": self._length,
            "ranks": self._ranks,
            "seed": self._seed,
            "shards": hashlib.sha256(names.encode()).hexdigest(),
        }


def _torch_worker() -> tuple[int, int]:
    """Return this process's number among the workers of a torch DataLoader, and their count; else (0, 1)."""
    data = sys.modules.get("torch.utils.data")  # every such worker has loaded it
    info = data.get_worker_info() if data else None
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


class _MappedShards:
    """The shards as arrays, mapped when they are first used. At most two stay mapped."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self._files = files
        self._open: dict[int, Tokens] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_open": {}}  # a mapped shard would be pickled with all its tokens

    def __getitem__(self, number: int) -> Tokens:
        if number not in self._open:
            if len(self._open) > 1:
                del self._open[next(iter(self._open))]
            self._open[number] = self._files[number].map()
        return self._open[number]


class _SequentialOrder:
    """The order of DataLoaderLite: each rank goes through all shards in their order."""

    def __init__(self, files: Sequence[TokenFile], size: int, rank: int, ranks: int) -> None:
        self._shards = _MappedShards(files)
        self._size, self._rank, self._ranks = size, rank, ranks
        self._ends = [*accumulate(self._count_batches(file.tokens, rank) for file in files)]
        # The last rank has the fewest. All stop there: with different numbers, ranks would wait for each
        # other for ever.
        self.batches = sum(self._count_batches(file.tokens, ranks - 1) for file in files)

    def _count_batches(self, tokens: int, rank: int) -> int:
        """Count the batches that DataLoaderLite takes from a shard: one without a check, and more as long as
        another step of all ranks fits behind the last."""
        if tokens < self._size * (rank + 1) + 1:
            return 0
        return max(1, (tokens - 1 - self._size * rank) // (self._size * self._ranks))

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        shard = bisect_right(self._ends, number)
        step = number - (self._ends[shard - 1] if shard else 0)
        begin = self._size * (step * self._ranks + self._rank)
        tokens = self._shards[shard][begin : begin + self._size + 1].astype(np.int64)
        return tokens[:-1], tokens[1:].copy()  # a copy: changing the targets must not change the inputs


class _ShuffledOrder:
    """All windows in an order that depends on seed and epoch; the ranks take turns, a batch each."""

    def __init__(
        self, files: Sequence[TokenFile], batch_size: int, length: int, rank: int, ranks: int, seed: int
    ) -> None:
        self._shards = _MappedShards(files)
        self._batch_size, self._length, self._rank, self._ranks = batch_size, length, rank, ranks
        self._seed = seed
        self._windows = [max(0, file.tokens - 1) // length for file in files]
        self.batches = sum(self._windows) // (batch_size * ranks)
        self._epoch = -1
        self._permuted: dict[int, NDArray[np.int64]] = {}

    def batch(self, epoch: int, number: int) -> tuple[Rows, Rows]:
        self._shuffle_for(epoch)
        first = (number * self._ranks + self._rank) * self._batch_size
        rows = [self._row(place) for place in range(first, first + self._batch_size)]
        tokens = np.stack(rows).astype(np.int64)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    def _shuffle_for(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._permuted.clear()
            generator = np.random.default_rng([self._seed, epoch])
            self._shard_order = generator.permutation(len(self._windows)).tolist()
            self._ends = [*accumulate(self._windows[shard] for shard in self._shard_order)]

    def _row(self, place: int) -> Tokens:
        """Return the window at this place of the epoch, with the token that follows it."""
        turn = bisect_right(self._ends, place)
        shard = self._shard_order[turn]
        window = self._window_order(shard)[place - (self._ends[turn - 1] if turn else 0)]
        return self._shards[shard][window * self._length : (window + 1) * self._length + 1]

    def _window_order(self, shard: int) -> NDArray[np.int64]:
        if shard not in self._permuted:
            if len(self._permuted) > 1:
                del self._permuted[next(iter(self._permuted))]
            generator = np.random.default_rng([self._seed, self._epoch, shard])
            self._permuted[shard] = generator.permutation(self._windows[shard])
        return self._permuted[shard]


def _open(shards: str | Path | Sequence[str | Path], split: str, dtype: Dtype | None) -> list[TokenFile]:
    if not isinstance(shards, (str, Path)):
        files = [open_token_file(Path(path), dtype) for path in shards]
    else:
        try:
            files = token_files(Path(shards), split, dtype)
        except OSError as error:
            raise InputError(f"{shards}: {error.strerror}.", "Name a folder of shards.") from error
    if not files:
        raise InputError(
            f"{shards}: there is no file of tokens with {split!r} in its name.", "Check the split."
        )
    return files
