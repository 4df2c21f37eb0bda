"""Rows that begin at documents, and documents that are shuffled: against plain lists, for every setting."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import InputError
from fineweb_shards.loader import ShardLoader, shards
from tests.support import loader_reference
from tests.support.loader_reference import Ids

EOT = 9
GPT2_EOT = 50256
SETTINGS = [
    {"align": "document"},
    {"align": "document", "seed": 5},
    {"align": "document", "seed": 5, "shuffle": "documents"},
    {"seed": 5, "shuffle": "documents"},
]
any_settings = pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: "-".join(map(str, one.values())))


@dataclass(frozen=True)
class Case:
    """A stream of documents that was cut into shards."""

    shards: list[Ids]
    eot_first: bool
    width_bytes: int
    seq_len: int
    batch_size: int
    world_size: int
    most_tokens: int  # larger files count as several shards

    def parts(self) -> list[Ids]:
        """The shards as the loader has them."""
        return [
            shard[begin : begin + self.most_tokens]
            for shard in self.shards
            for begin in range(0, len(shard), self.most_tokens)
        ]

    def rows(self, settings: dict[str, Any], epoch: int) -> list[Ids]:
        return loader_reference.epoch_rows(
            self.parts(),
            self.seq_len,
            eot=EOT,
            eot_first=self.eot_first,
            aligned="align" in settings,
            shuffle=settings.get("shuffle", "rows" if "seed" in settings else ""),
            seed=settings.get("seed"),
            epoch=epoch,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Documents of 0 to 30 tokens, some shorter and some longer than a row, in one to four files."""
    documents = draw(st.lists(st.lists(st.integers(0, 8), max_size=30), min_size=3, max_size=60))
    eot_first = draw(st.booleans())
    parts = [[EOT, *text] if eot_first else [*text, EOT] for text in documents]
    stream = [*itertools.chain(*parts)]
    stream = stream[: len(stream) - draw(st.integers(0, 2))]  # a stream may end in the middle of a document
    ends = sorted(draw(st.lists(st.integers(1, len(stream)), max_size=3, unique=True)) if stream else [])
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *ends, len(stream)])]
    return Case(
        shards=[piece for piece in pieces if piece],
        eot_first=eot_first,
        width_bytes=draw(st.sampled_from([2, 4])) if eot_first else 2,
        seq_len=draw(st.integers(1, 12)),
        batch_size=draw(st.integers(1, 3)),
        world_size=draw(st.integers(1, 3)),
        most_tokens=draw(st.sampled_from([40, 10**6])),
    )


@contextmanager
def written(case: Case) -> Iterator[Path]:
    """A folder of these shards, as some other program may have made it: without a manifest."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "MOST_TOKENS", case.most_tokens)
        for number, shard in enumerate(case.shards):
            tokens = np.array(shard, f"<u{case.width_bytes}")
            if case.eot_first:
                np.save(Path(name) / f"my_train_{number:03d}.npy", tokens)
            else:
                tokens.tofile(Path(name) / f"train_shard_{number:04d}.bin")
        yield Path(name)


def loader_of(folder: Path, case: Case, rank: int, **settings: Any) -> ShardLoader:
    return ShardLoader(
        folder,
        batch_size=case.batch_size,
        seq_len=case.seq_len,
        rank=rank,
        world_size=case.world_size,
        eot=EOT,
        framework="numpy",
        **settings,
    )


def joined(batch: tuple[Any, Any]) -> list[Ids]:
    """The rows of a batch with their last targets; inputs and targets must be one token apart."""
    x, y = batch
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(x[:, 1:], y[:, :-1])
    return np.column_stack([x, y[:, -1]]).tolist()


@pytest.mark.full(but=["document-5-documents"])
@any_settings
@given(case=cases())
def test_batches_are_those_of_plain_lists(settings: dict[str, Any], case: Case) -> None:
    """On every rank, over three epochs, and from a state that was saved before any batch on another rank."""
    if EOT not in case.shards[0]:
        return  # refused: tested below
    expected = [
        [
            batch
            for epoch in range(3)
            for batch in loader_reference.batches_of_rank(
                case.rows(settings, epoch), case.batch_size, rank, case.world_size
            )
        ]
        for rank in range(case.world_size)
    ]
    per_epoch = [len(case.rows(settings, epoch)) // (case.batch_size * case.world_size) for epoch in range(3)]
    with written(case) as folder:
        if not per_epoch[0]:
            with pytest.raises(InputError, match="no shard has a batch"):
                loader_of(folder, case, 0, **settings)
            return
        if not all(per_epoch):
            return  # so few documents that some orders of them make no batch
        loaders = [loader_of(folder, case, rank, **settings) for rank in range(case.world_size)]
        resumed = loader_of(folder, case, case.world_size - 1, **settings)
        for number, batches in enumerate(zip(*expected, strict=True)):
            resumed.load_state_dict(loaders[0].state_dict())
            assert joined(resumed.next_batch()) == batches[-1]
            for loader, batch in zip(loaders, batches, strict=True):
                assert loader.epoch == sum(number >= end for end in itertools.accumulate(per_epoch))
                assert joined(loader.next_batch()) == batch
        assert [loaders[0].count_batches(epoch) for epoch in range(3)] == per_epoch


def write_documents(folder: Path, lengths: list[int], per_shard: int) -> None:
    """Shards of documents whose first token, behind the EOT, is their number."""
    folder.mkdir(exist_ok=True)
    for shard, first in enumerate(range(0, len(lengths), per_shard)):
        tokens: list[int] = []
        for number, length in enumerate(lengths[first : first + per_shard], first):
            tokens += [GPT2_EOT, number, *[1] * (length - 2)]
        np.save(folder / f"edufineweb_train_{shard:06d}.npy", np.array(tokens, np.uint16))


def test_every_row_begins_at_a_document(tmp_path: Path) -> None:
    """And a document is never in two rows; with GPT-2's EOT, which nobody has to name."""
    write_documents(tmp_path, [2 + 7 * number % 40 for number in range(500)], 100)
    for settings in SETTINGS[:3]:
        loader = ShardLoader(tmp_path, batch_size=4, seq_len=32, framework="numpy", **settings)
        rows = [row for x, _ in loader.epoch_batches(0) for row in x.tolist()]
        assert len(rows) > 200
        assert {row[0] for row in rows} == {GPT2_EOT}
        begun = [row[place + 1] for row in rows for place in range(31) if row[place] == GPT2_EOT]
        assert len(set(begun)) == len(begun) > 350


def test_shuffled_documents_lose_no_token(tmp_path: Path) -> None:
    """Except what is too short for a row at the end of each shard, without align; long ones go on in the next row; and
    two epochs have two orders."""
    write_documents(tmp_path, [2 + 7 * number % 90 for number in range(300)], 100)
    loader = ShardLoader(tmp_path, batch_size=1, seq_len=32, seed=1, shuffle="documents", framework="numpy")
    orders = []
    for epoch in range(2):
        seen = [token for x, _ in loader.epoch_batches(epoch) for token in x.ravel().tolist()]
        total = sum(2 + 7 * number % 90 for number in range(300))
        assert total - 3 * 33 <= len(seen) < total
        order = [token for before, token in itertools.pairwise(seen) if before == GPT2_EOT]
        assert len(set(order)) == len(order) > 290
        orders.append(order)
    assert orders[0] != orders[1]
    assert len({number // 100 for number in orders[0][:90]}) == 1, "a shard at a time"


@any_settings
@pytest.mark.parametrize("workers", [2, 3])
def test_a_loader_that_was_sent_to_workers(tmp_path: Path, settings: dict[str, Any], workers: int) -> None:
    """A pickled copy gives the same batches by their numbers, in any order, and holds no tokens."""
    write_documents(tmp_path, [2 + 7 * number % 90 for number in range(600)], 150)
    loader = ShardLoader(tmp_path, batch_size=2, seq_len=16, framework="numpy", **settings)
    expected = [joined(batch) for batch in loader.epoch_batches(1)]
    data = pickle.dumps(loader)
    assert len(data) < 4000
    copies = [pickle.loads(data) for _ in range(workers)]
    assert [joined(copies[number % workers].batch(1, number)) for number in range(len(expected))] == expected
    with pytest.raises(IndexError, match="epoch 1 has no batch"):
        loader.batch(1, len(expected))


def test_a_state_is_of_its_settings(tmp_path: Path) -> None:
    """A state of another order, or of other shards, is refused."""
    write_documents(tmp_path, [20] * 300, 100)
    words: dict[str, Any] = {"batch_size": 2, "seq_len": 16, "seed": 1, "framework": "numpy"}
    plain = ShardLoader(tmp_path, **words)
    aligned = ShardLoader(tmp_path, align="document", **words)
    for loader, state, name in [
        (aligned, plain.state_dict(), "align"),
        (plain, aligned.state_dict(), "align"),
        (ShardLoader(tmp_path, shuffle="documents", **words), plain.state_dict(), "shuffle"),
        (ShardLoader(tmp_path, eot=1, align="document", **words), aligned.state_dict(), "eot"),
        (ShardLoader(sorted(tmp_path.iterdir())[:2], **words), plain.state_dict(), "shards"),
    ]:
        with pytest.raises(ValueError, match=f"saved with {name} ="):
            loader.load_state_dict(state)
    for _ in range(len(plain) + 3):
        plain.next_batch()
    state = plain.state_dict()
    again = ShardLoader(tmp_path, **words)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert joined(again.next_batch()) == joined(plain.next_batch())


def test_an_eot_that_nobody_can_know_is_asked_for(tmp_path: Path) -> None:
    """Files without a manifest: an EOT that does not occur, or ids too wide for GPT-2's."""
    words: dict[str, Any] = {"batch_size": 1, "seq_len": 2, "align": "document", "framework": "numpy"}
    np.save(tmp_path / "a_train.npy", np.arange(100, dtype=np.uint16))
    with pytest.raises(InputError, match=r"a_train.npy: it has no token 50256") as refused:
        ShardLoader(tmp_path, **words)
    assert "eot=" in refused.value.hint
    with pytest.raises(InputError, match="it has no token 70000"):
        ShardLoader(tmp_path, eot=70000, **words)
    np.save(tmp_path / "a_train.npy", np.arange(100, dtype=np.uint32))
    with pytest.raises(InputError, match=r"a_train.npy: it has uint32 tokens, and no manifest"):
        ShardLoader(tmp_path, **words)
    assert ShardLoader(tmp_path, eot=50, **words).next_batch()[0].tolist() == [[50, 51]]


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Before any file is opened."""
    for settings, sentence in [
        ({"align": "documents"}, "align must be"),
        ({"shuffle": "windows", "seed": 1}, "shuffle"),
        ({"shuffle": "documents"}, "needs a seed"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            ShardLoader(tmp_path / "nowhere", batch_size=1, seq_len=1, **settings)  # type: ignore[arg-type]


def test_both_splits_of_one_by_one_documents_begin_with_one(tmp_path: Path) -> None:
    """Where both splits are numbered from 0, the first training shard does not go on from validation."""
    np.array([1, 2], np.uint16).tofile(tmp_path / "val_shard_0000.bin")
    np.array([3, 4, EOT, 5, 6, 7, EOT], np.uint16).tofile(tmp_path / "train_shard_0000.bin")
    words: dict[str, Any] = {"batch_size": 1, "seq_len": 3, "align": "document", "framework": "numpy"}
    assert ShardLoader(tmp_path, eot=EOT, **words).next_batch()[0].tolist() == [[3, 4, EOT]]
    (tmp_path / "val_shard_0000.bin").rename(tmp_path / "val_shard_0001.bin")
    (tmp_path / "train_shard_0000.bin").rename(tmp_path / "train_shard_0002.bin")
    assert ShardLoader(tmp_path, eot=EOT, **words).next_batch()[0].tolist() == [[5, 6, 7]]
