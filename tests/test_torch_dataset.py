"""ShardDataset in a real torch DataLoader. Needs torch, which is no dependency; loader/test_shard_loader.py tests how
batches are shared without it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import runs
from tests.support.inputs import write_text

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
def test_two_ranks_and_two_workers_see_every_window_once(folder: Path, seed: int | None, workers: int) -> None:
    """No batch twice, none lost, in the order of a ShardLoader; persistent workers hear of the next epoch."""
    seen: list[int] = []
    for rank in range(2):
        dataset = ShardDataset(folder, batch_size=2, seq_len=16, rank=rank, world_size=2, seed=seed)
        plain = ShardLoader(folder, batch_size=2, seq_len=16, rank=rank, world_size=2, seed=seed, framework="numpy")
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
        follow = ShardLoader(folder, batch_size=2, seq_len=16, rank=rank, world_size=2, seed=seed)
        assert [x.tolist() for x, _ in loader] == [x.tolist() for x, _ in follow.epoch_batches(1, 10)]
    assert len(set(seen)) == len(seen) == 2 * 2 * len(plain)


def test_a_rank_is_that_of_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to remember it; half of it is refused."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    x, _ = next(iter(ShardDataset(folder, batch_size=2, seq_len=16)))
    assert int(x[0, 0]) == 32
    with pytest.raises(ValueError, match="both rank and world_size"):
        ShardDataset(folder, batch_size=2, seq_len=16, rank=0)
    with pytest.raises(ValueError, match="an epoch has"):
        ShardDataset(folder, batch_size=2, seq_len=16).set_epoch(0, 10**6)


@pytest.mark.parametrize("settings", [{"align": "document"}, {"seed": 3, "shuffle": "documents"}])
def test_documents_come_in_the_same_order_from_workers(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    """As from a ShardLoader, also when a pass begins in the middle."""
    for path in folder.iterdir():
        np.save(tmp_path / path.name, np.load(path) % 41)
    words: dict[str, Any] = {"batch_size": 2, "seq_len": 16, "eot": 40, **settings}
    dataset = ShardDataset(tmp_path, rank=1, world_size=2, **words)
    plain = ShardLoader(tmp_path, rank=1, world_size=2, **words)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    for epoch, start in [(0, 0), (1, 3)]:
        dataset.set_epoch(epoch, start)
        expected = [x.tolist() for x, _ in plain.epoch_batches(epoch, start)]
        assert len(loader) == len(expected) > 10
        assert [x.tolist() for x, _ in loader] == expected


def test_workers_follow_a_build(tmp_path: Path) -> None:
    """Each by itself; how many batches there will be is not known before the build is complete."""
    path = write_text(tmp_path / "a.txt", ["some words " * 300] * 30)
    runs.build_inline(tmp_path / "out", path, shard_tokens=2000)
    complete = (tmp_path / "out" / "manifest.json").read_text()
    expected = ShardLoader(tmp_path / "out", batch_size=2, seq_len=16, framework="numpy")
    runs.forget_after(tmp_path / "out", 3)
    dataset = ShardDataset(tmp_path / "out", batch_size=2, seq_len=16, follow=True)
    with pytest.raises(TypeError, match="not known"):
        len(dataset)
    found = []
    for x, _ in DataLoader(dataset, batch_size=None, num_workers=2, prefetch_factor=2):
        found.append(x.tolist())
        if len(found) == 70:  # two shards for training have 62 batches each
            (tmp_path / "out" / "manifest.json").write_text(complete)
    assert found == [x.tolist() for x, _ in expected.epoch_batches(0)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_not_stacked(folder: Path, workers: int) -> None:
    """A DataLoader with a batch_size of its own is refused, with the line that works."""
    dataset = ShardDataset(folder, batch_size=2, seq_len=16)
    with pytest.raises(TypeError, match=r"DataLoader\(dataset, batch_size=None\)"):
        next(iter(DataLoader(dataset, batch_size=8, num_workers=workers)))
    x, _ = next(iter(DataLoader(dataset, batch_size=None, num_workers=workers)))
    assert x.shape == (2, 16)


@pytest.mark.filterwarnings("ignore:.set_vital.")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 5, 6])
def test_a_stateful_data_loader_resumes(folder: Path, workers: int, taken: int) -> None:
    """With the batches that were left, in their order; the next epoch is whole."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> tuple[ShardDataset, Any]:
        dataset = ShardDataset(folder, batch_size=2, seq_len=16, seed=3)
        dataset.set_epoch(1)
        return dataset, stateful(dataset, batch_size=None, num_workers=workers)

    plain = ShardLoader(folder, batch_size=2, seq_len=16, seed=3, framework="numpy")
    expected = [[x.tolist() for x, _ in plain.epoch_batches(epoch)] for epoch in (1, 2)]
    _, loader = make()
    batches = iter(loader)
    found = [next(batches)[0].tolist() for _ in range(taken)]
    state = loader.state_dict()
    dataset, loader = make()
    loader.load_state_dict(state)
    found += [x.tolist() for x, _ in loader]
    assert found == expected[0]
    dataset.set_epoch(2)
    assert [x.tolist() for x, _ in loader] == expected[1]


def test_a_state_is_a_place_and_reads_nothing_again(folder: Path) -> None:
    """Without it torchdata would read and drop what was taken; a state of other workers is refused."""
    first, second = (ShardDataset(folder, batch_size=2, seq_len=16, seed=3) for _ in range(2))
    first.set_epoch(1)
    batches = iter(first)
    taken = [next(batches)[0].tolist() for _ in range(4)]
    state = first.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 4)
    second.load_state_dict(state)
    plain = ShardLoader(folder, batch_size=2, seq_len=16, seed=3, framework="numpy")
    assert len(second) == len(plain) - 4
    rest = [x.tolist() for x, _ in DataLoader(second, batch_size=None, num_workers=2)]
    assert taken + rest == [x.tolist() for x, _ in plain.epoch_batches(1)]
    with pytest.raises(ValueError, match="saved in a DataLoader with"):
        second.load_state_dict({**state, "workers": 2})
