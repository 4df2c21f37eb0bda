"""The lists of a pile, and the ranges of it that are read, take little memory however short its documents are."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards import texts
from fineweb_shards.events import Observer
from fineweb_shards.formats import piles
from fineweb_shards.formats.base import PileSettings
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.shard_files import PileWork, TokenWriter
from fineweb_shards.run.resources import PARENT_BYTES
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Placement, Positions
from fineweb_shards.vocabulary import GPT2
from tests.support.shuffle_reference import hash64

ONE_PILE = 2  # with the empty one of validation


def write_list(folder: Path, hashes: np.ndarray, lengths: Positions, block: int) -> PileSettings:
    """Write the list of one pile, with so many documents in each block."""
    path, size = piles.list_path(folder), 0
    path.touch()
    for first in range(0, len(hashes), block):
        own = slice(first, first + block)
        tokens = [0, int(lengths[: own.stop].sum())]
        of_pile = np.ones(len(hashes[own]), np.int16)
        before = [0, int(lengths[:first].sum())]
        data = piles.list_block(before, tokens, [bytes(32)] * ONE_PILE, hashes[own], lengths[own], of_pile)
        piles.append_to_list(path, size, data)
        size += len(data)
    return PileSettings(ONE_PILE, size, np.dtype(np.uint16), eot_first=True)


def test_lists_take_what_is_counted_for_a_million_documents_of_one_token(tmp_path: Path) -> None:
    """Whatever part of the pile is read, no more memory is taken than PART_BYTES, which the parent has many times."""
    hashes = np.random.default_rng(1).integers(0, 2**64, 10**6, np.uint64)
    settings = write_list(tmp_path, hashes, np.ones(10**6, np.int64), 300_000)
    tracemalloc.start()
    try:
        pile = piles._Pile(piles.list_path(tmp_path), 1, settings)
        documents = 0
        for part in pile.parts(0):
            documents += len(part.ends)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert documents == pile.tokens == 10**6
    assert peak <= piles.PART_BYTES
    assert 4 * piles.PART_BYTES <= PARENT_BYTES


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_parts_are_the_documents_in_the_order_of_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However many are in a part: where each begins in the file, and where it ends in the order, as a plain sort has
    it, from the part on that has a position."""
    monkeypatch.setattr(piles, "MOST_IN_PART", most)
    chooser = random.Random(most)
    documents = [(hash64(most, ordinal), chooser.choice([1, 2, 300])) for ordinal in range(200)]
    offsets = [sum(length for _, length in documents[:i]) for i in range(200)]
    order = sorted(range(200), key=lambda i: documents[i])
    ends = [sum(documents[i][1] for i in order[: n + 1]) for n in range(200)]
    hashes, lengths = np.array([one for one, _ in documents], np.uint64), np.array([one for _, one in documents])
    settings = write_list(tmp_path, hashes, lengths, 70)
    pile = piles._Pile(piles.list_path(tmp_path), 1, settings)
    for position in (0, ends[77] - 1, ends[77], ends[-1]):
        parts = list(pile.parts(position))
        found = [(end, offset) for part in parts for end, offset in zip(part.ends, part.offsets, strict=True)]
        wanted = [(end, offsets[i]) for end, i in zip(ends, order, strict=True)]
        assert found == wanted[len(wanted) - len(found) :]
        assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
        assert all(part.begin <= position < part.end for part in parts[:1])
        assert (not parts) == (position == ends[-1])


def test_ranges_of_a_pile_are_read_in_any_order_and_density(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours, ranges far apart, short and long ones; what is read at once may be less than one of them."""
    whole = np.arange(50_000, dtype=np.uint16)
    path = tmp_path / "pile"
    whole.tofile(path)
    for seed in range(60):
        chooser = random.Random(seed)
        monkeypatch.setattr(piles, "_READ_BYTES", chooser.choice([2, 1000, 2**20]))
        monkeypatch.setattr(piles, "_GAP_BYTES", chooser.choice([0, 30, 2**13]))
        monkeypatch.setattr(texts, "_INDEXED_AT_ONCE", chooser.choice([1, 7, 2**13]))
        bounds = sorted(chooser.sample(range(len(whole) + 1), 2 * chooser.randint(1, 300)))
        if seed % 2:  # without gaps
            bounds = [bounds[0], *(bound for bound in bounds[1:-1] for _ in range(2)), bounds[-1]]
        ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
        chooser.shuffle(ranges)
        begins, ends = np.array(ranges).T
        tokens = np.empty(int((ends - begins).sum()), np.uint16)
        piles._read_ranges(path, tokens, begins, ends - begins)
        assert tokens.tolist() == [token for begin, end in ranges for token in range(begin, end)]


def test_a_block_of_short_documents_is_divided_without_an_object_for_each(tmp_path: Path) -> None:
    """Of a million documents of one token, all that is held to write them is less than 80 bytes for each."""
    shard_format = ShardFormat(get_layout("build-nanogpt"), GPT2)
    writer = TokenWriter(shard_format, Disk(tmp_path, 0, Observer()))
    ends = np.arange(1, 10**6 + 1)
    of_pile = (ends % 12 + 1).astype(np.int16)
    offsets = 2 * ((ends - 1) // 12)
    placement = Placement(str(tmp_path), offsets, np.stack([ends - 1, ends], 1), of_pile)
    tokens = (ends % 12 * 1000).astype(np.uint16)
    tracemalloc.start()
    try:
        writes = writer._divide(tokens, placement)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 * 10**6
    for path, _, data in writes:
        pile = int(Path(path).name)
        assert set(np.frombuffer(data, np.uint16).tolist()) == {(pile - 1) * 1000}
    assert sum(len(data) for _, _, data in writes) == 2 * 10**6


def test_the_object_of_a_checkpoint_has_its_additions_one_after_the_other(tmp_path: Path) -> None:
    """In the order of the piles, and nothing that comes after the checkpoint: a run that was stopped in the middle of a
    section has placed that already."""
    # Pile 0 grows from byte 100 to 106, pile 1 not at all, pile 2 from 8 to 18.
    work = PileWork(tmp_path, ((0, 100, 106), (1, 40, 40), (2, 8, 18)), "name")
    tokens, path = np.arange(100, dtype=np.uint16), tmp_path / "object"
    path.touch()
    placed = [(2, 14, (50, 52)), (0, 100, (10, 13)), (1, 40, (20, 30)), (2, 8, (60, 63)), (2, 18, (90, 99))]
    numbers, offsets, ranges = zip(*placed, strict=True)
    placement = Placement(str(path), np.array(offsets), np.array(ranges), np.array(numbers, np.int16))
    with contextlib.closing(
        TokenWriter(ShardFormat(get_layout("plain"), GPT2), Disk(tmp_path, 0, Observer()))
    ) as writer:
        writer.write(tokens, work.in_object(placement))
    assert np.fromfile(path, np.uint16).tolist() == [10, 11, 12, 60, 61, 62, 50, 51]
