"""Our loader gives build-nanogpt's batches; its own reads our folder, while it is being filled, too."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import InputError
from fineweb_shards.loader import ShardLoader
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet, write_text


class DataLoaderLite:
    """What build-nanogpt's DataLoaderLite does, with numpy in place of torch."""

    def __init__(self, folder: Path, batch: int, length: int, rank: int, ranks: int, split: str) -> None:
        self.batch, self.length, self.rank, self.ranks = batch, length, rank, ranks
        self.shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if split in name)
        assert self.shards, f"no shards found for split {split}"
        self.open(0)

    def open(self, number: int) -> None:
        self.current = number
        self.tokens = np.load(self.shards[number]).astype(np.int32)
        self.position = self.batch * self.length * self.rank

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        size = self.batch * self.length
        buffer = self.tokens[self.position : self.position + size + 1]
        inputs = buffer[:-1].reshape(self.batch, self.length)
        targets = buffer[1:].reshape(self.batch, self.length)
        self.position += size * self.ranks
        if self.position + (size * self.ranks + 1) > len(self.tokens):
            self.open((self.current + 1) % len(self.shards))
        return inputs, targets


def test_all_ranks_read_all_shards_in_order(tmp_path: Path) -> None:
    """Every batch of every rank is the segment of the reference stream that it should be."""
    documents = make_documents(300, seed=81)
    whole = reference.stream(documents)
    batch, length, ranks = 4, 32, 3
    size = batch * length
    # A length at which all ranks turn to the next shard after the same step, as at 100M tokens.
    shard_tokens = 10 * size * ranks + 300
    whole = whole[: len(whole) // shard_tokens * shard_tokens]
    path = write_parquet(tmp_path / "a.parquet", documents)
    runs.build_inline(tmp_path / "out", path, shard_tokens=shard_tokens, max_tokens=len(whole))
    parts = np.split(whole, len(whole) // shard_tokens)
    for split, shards in (("val", parts[:1]), ("train", parts[1:])):
        loaders = [DataLoaderLite(tmp_path / "out", batch, length, rank, ranks, split) for rank in range(ranks)]
        assert len(loaders[0].shards) == len(shards)
        for shard in shards:
            for step in range(10):
                for rank, loader in enumerate(loaders):
                    begin = size * (step * ranks + rank)
                    inputs, targets = loader.next_batch()
                    assert np.array_equal(inputs.ravel(), shard[begin : begin + size])
                    assert np.array_equal(targets.ravel(), shard[begin + 1 : begin + size + 1])


@pytest.mark.promise("a reader never sees half a shard")
def test_a_reader_never_sees_half_a_shard(tmp_path: Path) -> None:
    """All through a run, whatever the listing shows can be loaded and is final."""
    documents = [text for text in make_documents(2000, seed=82) if text and "<|endoftext|>" not in text]
    path = write_text(tmp_path / "a.txt", documents)
    whole = reference.stream(documents)
    out = tmp_path / "out"
    words = runs.command(
        "build", "--input", path, "--out", out, "--shard-tokens", "20k", "--batch-bytes", "8k",
        "--engine", "tiktoken", "--workers", "1",
    )  # fmt: skip
    seen: set[str] = set()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.01)
            for name in os.listdir(out) if out.exists() else []:
                if "train" in name or "val" in name:
                    index = int(name[-10:-4])
                    tokens = np.load(out / name)
                    assert np.array_equal(tokens, whole[index * 20_000 :][:20_000])
                    seen.add(name)
        assert process.returncode == 0
    assert len(seen) > 1
    assert sorted(runs.shards_in(out)) == sorted(reference.shard_files(whole, 20_000))


LENGTHS = [1000, 937, 1500, 300, 40, 1]  # the last ones too short for a batch of all ranks, or of any


def write_shards(folder: Path, lengths: list[int], layout: str = "build-nanogpt") -> list[np.ndarray]:
    """Training shards whose tokens are all different."""
    folder.mkdir()
    shards, first = [], 0
    for number, length in enumerate(lengths, 1):
        tokens = np.arange(first, first + length, dtype=np.uint16)
        first += length
        shards.append(tokens)
        if layout == "build-nanogpt":
            np.save(folder / f"edufineweb_train_{number:06d}.npy", tokens)
        else:
            header = np.zeros(256 if layout == "llm.c" else 0, "<i4")
            header[:3] = [20240520, 1, length][: len(header)]
            name = f"fineweb_train_{number:06d}.bin" if layout == "llm.c" else f"train_shard_{number:04d}.bin"
            (folder / name).write_bytes(header.tobytes() + tokens.tobytes())
    return shards


@pytest.mark.parametrize("layout", ["build-nanogpt", "llm.c", "plain"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batches_are_those_of_dataloaderlite(tmp_path: Path, layout: str, ranks: int) -> None:
    """For every rank, in both of two epochs, where DataLoaderLite does not crash, in all kinds of files."""
    write_shards(tmp_path / "ours", LENGTHS[:3], layout)
    write_shards(tmp_path / "npy", LENGTHS[:3])
    for rank in range(ranks):
        ours = ShardLoader(tmp_path / "ours", batch_size=3, seq_len=16, rank=rank, world_size=ranks, framework="numpy")
        for _ in range(2):
            theirs = DataLoaderLite(tmp_path / "npy", 3, 16, rank, ranks, "train")
            for _ in range(len(ours)):
                for found, expected in zip(ours.next_batch(), theirs.next_batch(), strict=True):
                    assert found.dtype == np.int64
                    assert np.array_equal(found, expected)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_all_ranks_have_the_same_number_of_batches(tmp_path: Path, ranks: int, seed: int | None) -> None:
    """So that a loop over an epoch ends on all of them; it is what the rank with the fewest has."""
    write_shards(tmp_path / "some", [2000, 937, 1500, 430, 300, 40, 1])
    loaders = [
        ShardLoader(tmp_path / "some", batch_size=2, seq_len=16, rank=r, world_size=ranks, seed=seed, framework="numpy")
        for r in range(ranks)
    ]
    (number,) = {len(loader) for loader in loaders}
    for loader in loaders:
        assert number == len(loader) == sum(1 for _ in loader.epoch_batches(0))
        for _ in range(number):
            assert loader.epoch == 0
            loader.next_batch()
        assert loader.epoch == 1


def be_worker(monkeypatch: pytest.MonkeyPatch, number: int, workers: int) -> None:
    """As in a process that a torch DataLoader has started."""
    info = types.SimpleNamespace(id=number, num_workers=workers)
    module = types.SimpleNamespace(get_worker_info=lambda: info)
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 500])
@pytest.mark.parametrize("start", [0, 5])
def test_workers_share_the_batches_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, seed: int | None, start: int
) -> None:
    """Each batch comes from one worker, and asked in turn they give the order of a single one."""
    write_shards(tmp_path / "some", LENGTHS)
    for rank in range(2):
        loader = ShardLoader(
            tmp_path / "some", batch_size=2, seq_len=16, rank=rank, world_size=2, seed=seed, framework="numpy"
        )
        expected = [x.tolist() for x, _ in loader.epoch_batches(1, start)]
        assert len(expected) == len(loader) - start
        shares = []
        for number in range(workers):
            be_worker(monkeypatch, number, workers)
            shares.append([x.tolist() for x, _ in loader.epoch_batches(1, start)])
            monkeypatch.undo()
        turns = itertools.zip_longest(*shares)
        assert [batch for turn in turns for batch in turn if batch is not None] == expected


def test_several_workers_with_the_same_batches_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker there is nothing to refuse."""
    write_shards(tmp_path / "some", LENGTHS)
    loader = ShardLoader(tmp_path / "some", batch_size=2, seq_len=16, framework="numpy")
    be_worker(monkeypatch, 0, 1)
    loader.next_batch()
    be_worker(monkeypatch, 0, 2)
    with pytest.raises(RuntimeError, match="ShardDataset"):
        next(iter(loader))


@pytest.mark.parametrize("seed", [None, 3])
def test_a_pickle_holds_no_tokens(tmp_path: Path, seed: int | None) -> None:
    """A loader that has mapped a shard is as small as before, and goes on where it was."""
    write_shards(tmp_path / "some", [60_000])
    loader = ShardLoader(tmp_path / "some", batch_size=2, seq_len=1000, seed=seed, framework="numpy")
    loader.next_batch()
    data = pickle.dumps(loader)
    assert len(data) < 4000
    other = pickle.loads(data)
    assert np.array_equal(other.next_batch()[0], loader.next_batch()[0])


def test_targets_are_an_array_of_their_own(tmp_path: Path) -> None:
    """Masking some of them leaves the inputs as they are."""
    write_shards(tmp_path / "some", LENGTHS)
    x, y = ShardLoader(tmp_path / "some", batch_size=2, seq_len=16, framework="numpy").next_batch()
    y[:] = -100
    assert x.ravel().tolist() == list(range(32))


def test_short_shards_do_not_crash(tmp_path: Path) -> None:
    """They are passed over by the ranks that find no batch in them; a folder of nothing else is told."""
    write_shards(tmp_path / "some", LENGTHS)
    for rank in range(4):
        loader = ShardLoader(tmp_path / "some", batch_size=4, seq_len=16, rank=rank, world_size=4, framework="numpy")
        for _ in range(3 * len(loader)):
            x, y = loader.next_batch()
            assert np.array_equal(x.ravel()[1:], y.ravel()[:-1])
    write_shards(tmp_path / "short", [5, 9])
    with pytest.raises(InputError, match="no shard has a batch"):
        ShardLoader(tmp_path / "short", batch_size=4, seq_len=16)
    with pytest.raises(InputError, match="no token file with 'val'"):
        ShardLoader(tmp_path / "short", "val", batch_size=4, seq_len=16)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_state_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, seed: int | None) -> None:
    """On every rank, also with the state that another rank has saved; other settings are refused."""
    write_shards(tmp_path / "some", LENGTHS)

    def loader(rank: int, **more: int) -> ShardLoader:
        words = {"batch_size": 2, "seq_len": 16, "rank": rank, "world_size": 2, "seed": seed, **more}
        return ShardLoader(tmp_path / "some", framework="numpy", **words)  # type: ignore[arg-type]

    loaders = [loader(0), loader(1)]
    for steps in (0, 7, 60, 130):
        for one in loaders:
            for _ in range(steps):
                one.next_batch()
        state = loaders[0].state_dict()
        for rank in (0, 1):
            other = loader(rank)
            other.load_state_dict(state)
            follow = loader(rank)
            follow.load_state_dict(loaders[rank].state_dict())
            for _ in range(5):
                assert np.array_equal(other.next_batch()[0], follow.next_batch()[0])
    with pytest.raises(ValueError, match="seq_len"):
        loader(0, seq_len=8).load_state_dict(state)


def test_the_old_names_of_settings_still_work(tmp_path: Path) -> None:
    """`length` and `ranks` give the batches of `seq_len` and `world_size`, with a warning for each."""
    write_shards(tmp_path / "some", LENGTHS)
    new = ShardLoader(tmp_path / "some", batch_size=2, seq_len=16, rank=1, world_size=2, framework="numpy")
    with pytest.warns(DeprecationWarning) as seen:  # noqa: PT030 # the two messages are below
        old = ShardLoader(tmp_path / "some", batch_size=2, length=16, rank=1, ranks=2, framework="numpy")
    assert [str(one.message) for one in seen] == [
        "length is deprecated: pass seq_len",
        "ranks is deprecated: pass world_size",
    ]
    assert {one.filename for one in seen} == {__file__}
    assert old.state_dict() == new.state_dict()
    assert np.array_equal(old.next_batch()[0], new.next_batch()[0])
    with pytest.raises(TypeError, match="pass seq_len alone"):
        ShardLoader(tmp_path / "some", batch_size=2, seq_len=16, length=16)
    with pytest.raises(TypeError, match="seq_len is missing"):
        ShardLoader(tmp_path / "some", batch_size=2)


def test_a_shuffle_gives_every_window_once(tmp_path: Path) -> None:
    """Ranks share the windows of an epoch between them; every epoch and every seed has its own order."""
    shards = write_shards(tmp_path / "some", LENGTHS)
    windows = {tuple(shard[i : i + 16].tolist()) for shard in shards for i in range(0, len(shard) - 16, 16)}
    orders = []
    for seed in (1, 2):
        loaders = [
            ShardLoader(
                tmp_path / "some", batch_size=2, seq_len=16, rank=rank, world_size=3, seed=seed, framework="numpy"
            )
            for rank in range(3)
        ]
        for epoch in range(2):
            seen = []
            for _ in range(len(loaders[0])):
                for loader in loaders:
                    assert loader.epoch == epoch
                    x, y = loader.next_batch()
                    assert np.array_equal(x[:, 1:], y[:, :-1])
                    seen += [tuple(row) for row in x.tolist()]
            assert len(set(seen)) == len(seen)
            assert set(seen) <= windows
            assert len(windows) - len(seen) < 2 * 3
            orders.append(seen)
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a_train.npy", b"\x93NUMPY\x01\x00\xff\xff" + b" " * 100),
        ("a_train.npy", b"\x93NUMPY\x02\x00" + b"\xff" * 4),
        ("a_train.npy", b"\x93NUM"),
        ("a_train.bin", b"\x88\xd8\x34\x01\x01\0\0\0\xff\xff\xff\x7f" + b"\0" * 1012),
        ("a_train.bin", b"\x88\xd8\x34\x01\x07\0\0\0"),
        ("a_train.bin", b"\xa1\xd9\x34\x01\x07\0\0\0"),
        ("a_train.bin", b"odd"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    """Sizes that the file does not have, other versions, half a header: a sentence, no allocation."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name):
        ShardLoader(tmp_path, batch_size=1, seq_len=1)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    """An array of objects is refused by its header."""
    np.save(tmp_path / "a_train.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(InputError, match="not a row of uint16"):
        ShardLoader(tmp_path, batch_size=1, seq_len=1)


def test_torch_tensors_where_torch_is(tmp_path: Path) -> None:
    """The same values, as int64 tensors."""
    torch = pytest.importorskip("torch")
    write_shards(tmp_path / "some", LENGTHS)
    x, y = ShardLoader(tmp_path / "some", batch_size=2, seq_len=16).next_batch()
    assert x.dtype == y.dtype == torch.int64
    assert x.tolist() == np.arange(32).reshape(2, 16).tolist()


@pytest.mark.parametrize("settings", [{"seed": 5}, {"seed": 5, "shuffle": "documents"}, {"align": "document"}, {}])
def test_a_state_goes_to_another_number_of_ranks(tmp_path: Path, settings: dict[str, Any]) -> None:
    """If world_size x batch_size is the same, a step of all ranks has the same rows. In DataLoaderLite's order the ends
    of shards depend on the ranks, and it is refused."""
    for number in range(3):
        np.save(tmp_path / f"edufineweb_train_{number:06d}.npy", np.arange(3000, dtype=np.uint16) % 41)

    def steps(ranks: int, state: dict[str, Any] | None, count: int) -> tuple[list[Any], dict[str, Any]]:
        words: dict[str, Any] = {"batch_size": 8 // ranks, "seq_len": 16, "eot": 40, "framework": "numpy"}
        loaders = [ShardLoader(tmp_path, rank=rank, world_size=ranks, **words, **settings) for rank in range(ranks)]
        for loader in loaders if state else ():
            loader.load_state_dict(state or {})
        rows = [np.concatenate([loader.next_batch()[0] for loader in loaders]).tolist() for _ in range(count)]
        return rows, loaders[0].state_dict()

    _, state = steps(4, None, 3)
    if not settings:
        with pytest.raises(ValueError, match="batch_size = 2, here it is 4"):
            steps(2, state, 5)
        return
    expected, _ = steps(4, state, 5)
    for ranks in (1, 2, 8):
        assert steps(ranks, state, 5)[0] == expected
    with pytest.raises(ValueError, match="saved with"):
        ShardLoader(tmp_path, batch_size=3, seq_len=16, eot=40, **settings).load_state_dict(state)
