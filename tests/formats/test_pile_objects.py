"""A pile in a bucket is fetched in pieces of its objects: the documents of a batch, whole and in its order."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import DamageError, InputError
from fineweb_shards.executors.base import completed
from fineweb_shards.formats import piles
from fineweb_shards.formats.base import PileSettings, ReadSettings
from fineweb_shards.formats.registry import PILES
from fineweb_shards.storage.place import SCRATCH, InputFile
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import GPT2
from tests.support.shuffle_reference import hash64

COUNT = 3  # piles, with that of validation
SEED = 5


class FakeBucket:
    """Objects in memory; `damages` are answers that arrive with a flipped bit."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.address = SimpleNamespace(child=lambda name: f"s3://bucket/{name}")
        self.damages = 0
        self._turn = threading.Lock()

    def fetch(self, name: str, etag: str | None, begin: int, end: int) -> memoryview:
        assert etag is None
        if name not in self.objects:
            raise InputError("there is no such object")
        data = bytearray(self.objects[name][begin:end])
        assert len(data) == end - begin
        with self._turn:
            if self.damages and data:
                self.damages -= 1
                data[0] ^= 1
        return memoryview(data)

    def head(self, name: str) -> object:
        return self.objects.get(name)

    def delete_one(self, name: str) -> None:
        del self.objects[name]


def make_pile(folder: Path, seed: int) -> tuple[piles.PilesFormat, FakeBucket, list[InputFile], list[Tokens]]:
    """Piles of random documents, cut into random checkpoints, one of them inside a document; and what they are in the
    order of their hashes, by pile."""
    chooser = random.Random(seed)
    documents = []
    for _ in range(chooser.randint(1, 200)):
        words = [chooser.randrange(50_000) for _ in range(chooser.choice([0, 1, 5, 300]))]
        documents.append(np.array([GPT2.eot, *words], np.uint16))
    hashes = np.array([hash64(SEED, ordinal) for ordinal in range(len(documents))], np.uint64)
    numbers = np.array([chooser.randrange(COUNT) for _ in documents], np.int16)
    objects: dict[str, bytes] = {}
    before, path, size = [0] * COUNT, piles.list_path(folder), 0
    path.touch()
    contents, expected = (
        [
            np.concatenate([np.empty(0, np.uint16), *(documents[i] for i in order if numbers[i] == pile)])
            for pile in range(COUNT)
        ]
        for order in (range(len(documents)), np.argsort(hashes))
    )
    listed = 0
    while listed < len(documents):
        count = min(len(documents) - listed, chooser.randint(0, 60))
        listed_now = slice(listed, listed + count)
        listed += count
        after = [sum(len(documents[i]) for i in range(listed) if numbers[i] == pile) for pile in range(COUNT)]
        if listed < len(documents):  # a part of the next one, which is listed later
            after[numbers[listed]] += chooser.randrange(len(documents[listed]))
        after = [max(one, earlier) for one, earlier in zip(after, before, strict=True)]
        added = [
            contents[pile][begin:end].tobytes() for pile, (begin, end) in enumerate(zip(before, after, strict=True))
        ]
        sha256 = [hashlib.sha256(one).digest() for one in added]
        lengths = np.array([len(one) for one in documents[listed_now]], np.int64)
        block = piles.list_block(before, after, sha256, hashes[listed_now], lengths, numbers[listed_now])
        objects[piles.object_name(size, sum(after))] = b"".join(added)
        piles.append_to_list(path, size, block)
        before, size = after, size + len(block)
    settings = PileSettings(COUNT, size, np.dtype(np.uint16), True, "s3://bucket/piles")
    read = ReadSettings(
        "", "none", chooser.choice([1000, 5000, 2**27]), False, GPT2, tokens_column="documents", piles=settings
    )
    files = [
        InputFile(
            pile,
            str(folder / piles.pile_name(pile)),
            f"pile {pile}",
            PILES,
            None,
            2 * before[pile],
            0,
            "",
            place=SCRATCH,
        )
        for pile in range(COUNT)
    ]
    reader, bucket = piles.PilesFormat(read), FakeBucket(objects)
    reader.__dict__["_bucket"] = bucket
    return reader, bucket, files, expected


def read_all(reader: piles.PilesFormat, file: InputFile) -> Tokens:
    found: list[Any] = [np.empty(0, np.uint16)]
    for batch in reader.batches(file, 0, False):
        position = batch.position
        for chunk in reader.chunks(file, batch):
            assert chunk.start == piles.Cursor(file.index, position, 0, chunk.starts_mid_document)
            found += [tokens for tokens, _ in chunk.documents._parts]  # type: ignore[union-attr]
            position += sum(len(tokens) for tokens, _ in chunk.documents._parts)  # type: ignore[union-attr]
        assert position == batch.end
    return np.concatenate(found)


def test_documents_of_piles_in_a_bucket_are_in_the_order_of_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever checkpoints, pieces and batches divide them."""
    for seed in range(25):
        chooser = random.Random(seed)
        monkeypatch.setattr(piles, "_PIECE_BYTES", chooser.choice([50, 1000, 2**23]))
        monkeypatch.setattr(piles, "_CHUNK_TOKENS", chooser.choice([1, 50, 2**22]))
        monkeypatch.setattr(piles, "_FETCHED_AT_ONCE", chooser.choice([1, 3, 8]))
        folder = tmp_path / str(seed)
        folder.mkdir()
        reader, _, files, expected = make_pile(folder, seed)
        for file, tokens in zip(files, expected, strict=True):
            assert read_all(reader, file).tolist() == tokens.tolist()


def test_damage_on_the_way_is_fetched_once_more_and_in_the_bucket_removed(tmp_path: Path) -> None:
    """An object that is missing or removed makes the next run repeat the first pass."""
    reader, bucket, files, expected = make_pile(tmp_path, 1)
    (batch, *_) = reader.batches(files[1], 0, False)
    bucket.damages, names = 1, set(bucket.objects)
    assert read_all(reader, files[1]).tolist() == expected[1].tolist()
    assert set(bucket.objects) == names
    bucket.damages = 10**6
    with pytest.raises(DamageError, match="has changed since it was written"):
        list(reader.chunks(files[1], batch))
    assert set(bucket.objects) < names
    bucket.damages = 0
    with pytest.raises(DamageError) as missing:
        list(reader.chunks(files[1], batch))
    assert "It is missing. Rerun the same command to repeat the first pass" in missing.value.hint


def test_few_pieces_of_a_pile_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the pile: another one is only begun when one has been used."""
    begun: list[Future[memoryview]] = []

    def fetch_now(action: Callable[[], memoryview]) -> Future[memoryview]:
        begun.append(completed(action()))
        return begun[-1]

    monkeypatch.setattr(piles, "_PIECE_BYTES", 20)
    monkeypatch.setattr(piles, "in_background", fetch_now)
    reader, _, files, _ = make_pile(tmp_path, 3)
    assert reader.settings.piles is not None
    pile = piles._Pile(piles.list_path(tmp_path), 1, reader.settings.piles)
    used = 0
    for used, _ in enumerate(reader._fetch_pieces(pile.additions, 2), 1):
        assert len(begun) < used + piles._FETCHED_AT_ONCE
    assert used == len(begun) > files[1].size_bytes // 20 > 2 * piles._FETCHED_AT_ONCE
