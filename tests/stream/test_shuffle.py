"""The order of a shuffle is random, and every piece of the stream has its place in a pile."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from fineweb_shards.stream.shuffle import CHECKSUMS, Listed, PileState, Shuffler, hash64, join_lists, pile_of
from fineweb_shards.types import Counts, Cursor
from tests.support import shuffle_reference

DOCUMENTS = 10**6
SEEDS = (0, 1, 2, 3, 2**32, 2**62)
START = (Cursor(0, 0),)


def ranks(seed: int) -> np.ndarray:
    """Where each of a million documents comes."""
    order = np.argsort(hash64(seed, np.arange(DOCUMENTS)))
    places = np.empty(DOCUMENTS, np.int64)
    places[order] = np.arange(DOCUMENTS)
    return places


def test_the_hash_is_the_one_of_the_reference_and_never_the_same() -> None:
    ordinals = np.array([0, 1, 2, 10**9, 2**40])
    for seed in SEEDS:
        assert hash64(seed, ordinals).tolist() == [shuffle_reference.hash64(seed, int(one)) for one in ordinals]
        assert (np.diff(np.sort(hash64(seed, np.arange(DOCUMENTS)))) > 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_are_uniform(seed: int) -> None:
    """Of any tenth of the documents as many come to each thousandth of the stream: chi-squared, within five sigma."""
    places = ranks(seed)
    for part in np.split(places, 10):
        counts = np.bincount(part * 1000 // DOCUMENTS, minlength=1000)
        chi_squared = float(((counts - 100) ** 2 / 100).sum()) / 0.9  # drawn without replacement
        assert abs(chi_squared - 999) < 5 * np.sqrt(2 * 999)


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_come_far_apart(seed: int) -> None:
    """Documents that follow one another are a third of the stream apart, on average, and no more often close than by
    chance; the same for those that are 2, 10 or 1,000 documents apart."""
    places = ranks(seed)
    for step in (1, 2, 10, 1000):
        distances = np.abs(places[step:] - places[:-step]) / DOCUMENTS
        assert abs(distances.mean() - 1 / 3) < 5 * np.sqrt(1 / 18 / DOCUMENTS) * 2
        assert abs((distances < 0.001).mean() - 0.002) < 5 * np.sqrt(0.002 / DOCUMENTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_as_long_as_by_chance(seed: int) -> None:
    """Of ascending runs of k or more there are 1 / (k + 1)! of the documents, roughly: no stretch keeps its order."""
    order = np.argsort(hash64(seed, np.arange(DOCUMENTS)))
    ascends = np.diff(order) > 0
    assert abs(ascends.mean() - 0.5) < 5 * np.sqrt(1 / 12 / DOCUMENTS)
    ends = np.flatnonzero(~ascends)
    lengths = np.diff(ends)
    assert abs(lengths.mean() - 2) < 0.01
    assert lengths.max() <= 12


def test_the_orders_of_two_seeds_have_nothing_in_common() -> None:
    """Neither as they are, nor shifted by a few documents: no lattice."""
    for one, other in pairwise(SEEDS):
        first, second = ranks(one), ranks(other)
        for shift in (0, 1, 2, other - one if other - one < 10 else 7):
            correlation = np.corrcoef(first[shift:], second[: DOCUMENTS - shift])[0, 1]
            assert abs(correlation) < 5 / np.sqrt(DOCUMENTS)


def test_piles_are_in_the_order_of_the_hashes_and_equally_full() -> None:
    hashes = np.sort(hash64(5, np.arange(DOCUMENTS)))
    for count in (1, 3, 256, 512):
        piles = pile_of(hashes, count)
        assert (np.diff(piles) >= 0).all()
        counts = np.bincount(piles, minlength=count + 1)
        assert counts[0] == 0
        assert np.abs(counts[1:] - DOCUMENTS / count).max() < 6 * np.sqrt(DOCUMENTS / count)


@pytest.mark.parametrize("eot_first", [True, False])
def test_every_token_is_in_the_pile_of_its_document(eot_first: bool) -> None:
    """However the stream is cut into sections, and stopped and continued: piles and list are those of a plain loop."""
    for seed in range(60):
        chooser = random.Random(seed)
        documents = [chooser.choice([1, 2, 5, 40]) for _ in range(chooser.randint(1, 60))]
        val = chooser.choice([0, 0, 3])
        stream = [(number, i) for number, length in enumerate(documents) for i in range(length)]
        is_eot = [i == (0 if eot_first else documents[number] - 1) for number, i in stream]
        count, boundary = chooser.choice([1, 3, 7]), sum(documents[:val])
        expected: list[list[tuple[int, int]]] = [[] for _ in range(count + 1)]
        for number, i in stream:
            pile = 0 if number < val else 1 + shuffle_reference.hash64(seed, number) * count // 2**64
            expected[pile].append((number, i))
        places = sorted({0, len(stream), boundary, *(chooser.randint(0, len(stream)) for _ in range(9))})
        shuffler = Shuffler(seed, PileState.beginning(count, START), eot_first=eot_first)
        found: list[dict[int, tuple[int, int]]] = [{} for _ in expected]
        listed = []
        for begin, end in pairwise(places):
            eots = np.array([i - begin for i in range(begin, end) if is_eot[i]], np.int64)
            pieces = shuffler.assign(eots, 0, end - begin, "val" if begin < boundary else "train")
            piles, offsets = pieces.place(np.arange(end - begin))
            for i, pile, offset in zip(range(begin, end), piles.tolist(), offsets.tolist(), strict=True):
                assert offset not in found[pile]
                found[pile][offset] = stream[i]
            listed.append(shuffler.take_listed())
            if chooser.random() < 0.5:
                shuffler = Shuffler(seed, shuffler.state(START, (), Counts()), eot_first=eot_first)
        shuffler.end()
        listed.append(shuffler.take_listed())
        assert [[pile[i] for i in range(len(pile))] for pile in found] == expected
        whole = join_lists(listed)
        assert sum(one.checksum for one in listed) % CHECKSUMS == whole.checksum
        assert whole.lengths.tolist() == documents
        assert whole.hashes.tolist() == [shuffle_reference.hash64(seed, i) for i in range(len(documents))]


def test_a_checksum_tells_documents_from_others_with_as_many_tokens() -> None:
    """In another order, of other lengths or in another pile: the sums of their tokens would not."""

    def checksum(lengths: list[int], piles: list[int]) -> int:
        hashes = hash64(7, np.arange(len(lengths)))
        return join_lists([Listed(hashes, np.array(lengths), np.array(piles, np.int16))]).checksum

    lists = ([3, 5, 4], [1, 1, 2]), ([5, 3, 4], [1, 1, 2]), ([4, 4, 4], [1, 1, 2]), ([3, 5, 4], [0, 1, 2])
    assert len({checksum(*one) for one in lists}) == 4
