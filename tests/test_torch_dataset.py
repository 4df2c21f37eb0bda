"""ShardDataset in a real torch DataLoader. Needs torch, which is no dependency; loader/test_shard_loader.py
tests how batches are shared without it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader

from fineweb_shards.loader import ShardLoader
from fineweb_shards.torch_dataset import ShardDataset

LENGTHS = [1000, 937, 1500, 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    tokens = np.arange(sum(LENGTHS), dtype=np.uint16)
    for number, part in enumerate(np.split(tokens, list(itertools.accumulate(LENGTHS))[:-1])):
        np.save(folder / f"edufineweb_train_{number:06d}.npy", part)
    return folder


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_and_two_workers_see_every_window_once(
    folder: Path, seed: int | None, workers: int
) -> None:
    """No batch twice, none lost, in the order of a ShardLoader; persistent workers hear of the next epoch."""
    seen: list[int] = []
    for rank in range(2):
        dataset = ShardDataset(folder, batch_size=2, length=16, rank=rank, ranks=2, seed=seed)
        plain = ShardLoader(folder, batch_size=2, length=16, rank=rank, ranks=2, seed=seed, framework="numpy")
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        assert len(loader) == len(plain)
        for epoch in range(2):
            dataset.set_epoch(epoch)
            batches = [x for x, _ in loader]
            assert len(batches) == len(plain)
            for x in batches:
                assert x.tolist() == plain.next_batch()[0].tolist()
            if epoch == 0:
                seen += [int(row[0]) for x in batches for row in x]
        dataset.set_epoch(1, 10)
        follow = ShardLoader(folder, batch_size=2, length=16, rank=rank, ranks=2, seed=seed)
        assert [x.tolist() for x, _ in loader] == [x.tolist() for x, _ in follow.epoch_batches(1, 10)]
    assert len(set(seen)) == len(seen) == 2 * 2 * len(plain)


def test_a_rank_is_that_of_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to remember it; half of it is refused."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    x, _ = next(iter(ShardDataset(folder, batch_size=2, length=16)))
    assert int(x[0, 0]) == 32
    with pytest.raises(ValueError, match="both rank and ranks"):
        ShardDataset(folder, batch_size=2, length=16, rank=0)
    with pytest.raises(ValueError, match="an epoch has"):
        ShardDataset(folder, batch_size=2, length=16).set_epoch(0, 10**6)
