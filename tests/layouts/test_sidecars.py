"""Sidecars are functions of a file's tokens: however many are read at a time, the bytes are the same."""

from __future__ import annotations

import errno
import os
import random
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from fineweb_shards.errors import OutputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.layouts.sidecar import DocumentIndex, FileFacts, Sidecar, parts_of_all
from fineweb_shards.output import sidecars
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.sidecars import FinishedFile, check_sidecars, have_sidecars, write_sidecars
from fineweb_shards.output.store import FoundFile
from fineweb_shards.types import Positions
from fineweb_shards.vocabulary import GPT2
from tests.support import layout_reference

EOT = 50256
WITH_SIDECARS = [name for name, layout in LAYOUTS.items() if layout.sidecars]


def make_tokens(count: int, documents: int, *, ends_with_eot: bool) -> list[int]:
    chooser = random.Random(count)
    tokens = [chooser.randrange(EOT) for _ in range(count)]
    for place in chooser.sample(range(count - 1), documents):
        tokens[place] = EOT
    tokens[-1] = EOT if ends_with_eot else 7
    return tokens


def joined(sidecar: Sidecar, file: FileFacts, eots: Iterable[Positions]) -> bytes:
    """The parts at their offsets; none overlaps another, and none is missing."""
    data: dict[int, bytes] = {part.offset: part.data for part in sidecar.parts(file, eots) if part.data}
    end, whole = 0, b""
    for offset in sorted(data):
        assert offset == end
        whole += data[offset]
        end += len(data[offset])
    return whole


def cut(places: Positions, size: int) -> Iterator[Positions]:
    return (places[first : first + size] for first in range(0, len(places), size))


@pytest.mark.parametrize("layout", WITH_SIDECARS)
@pytest.mark.parametrize(("count", "documents"), [(13_000, 12_000), (500, 20), (500, 0), (2, 1)])
@pytest.mark.parametrize("ends_with_eot", [True, False])
def test_the_size_of_the_blocks_changes_nothing(layout: str, count: int, documents: int, ends_with_eot: bool) -> None:
    """Nearly only EOTs (a table of several blocks), a few, none; all at once or a few at a time; and it is as long as
    was said before."""
    tokens = make_tokens(count, documents, ends_with_eot=ends_with_eot)
    name, *others = (expected := layout_reference.shard_files(layout, "train", 0, tokens))
    eots = np.flatnonzero(np.array(tokens) == EOT)
    described = LAYOUTS[layout]
    facts = FileFacts(count, described.dtype(GPT2), GPT2, described.eot_first, len(eots), True, ends_with_eot)
    assert [sidecar.name_for(name) for sidecar in described.sidecars] == others
    for sidecar in described.sidecars:
        for size in (1 if count < 1000 else 997, 10**6):
            assert joined(sidecar, facts, cut(eots, size)) == expected[sidecar.name_for(name)]
        assert sidecar.size_bytes(facts) in (None, len(expected[sidecar.name_for(name)]))


@pytest.mark.parametrize("eot_first", [True, False])
@pytest.mark.parametrize("before", [EOT, 7])
@pytest.mark.parametrize("ends_with_eot", [True, False])
def test_an_index_knows_what_came_before(eot_first: bool, before: int, ends_with_eot: bool) -> None:
    """With EOT after documents, one starts at the first token only if the token before it was an EOT."""
    tokens = make_tokens(300, 11, ends_with_eot=ends_with_eot)
    eots = np.flatnonzero(np.array(tokens) == EOT)
    facts = FileFacts(300, np.dtype("<u2"), GPT2, eot_first, len(eots), before == EOT, ends_with_eot)
    starts = layout_reference.document_starts(tokens, before, eot_first=eot_first)
    for size in (1, 5, 1000):
        data = joined(DocumentIndex(), facts, cut(eots, size))
        assert data == layout_reference.saved(starts, np.int64)
        assert DocumentIndex().size_bytes(facts) == len(data)


@pytest.mark.parametrize("read_bytes", [4, 52, 2**22])
def test_a_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    """Of any size, behind its header."""
    monkeypatch.setattr(sidecars, "_READ_BYTES", read_bytes)
    (tmp_path / ".fineweb-shards").mkdir()
    store = FolderStore(tmp_path)
    for layout in WITH_SIDECARS:
        tokens = make_tokens(400, 30, ends_with_eot=False)
        expected = layout_reference.shard_files(layout, "train", 0, tokens)
        name = next(iter(expected))
        (tmp_path / name).write_bytes(expected[name])
        described = LAYOUTS[layout]
        file = FinishedFile(store, name, 30, None, ShardFormat(described, GPT2), described.sidecars)
        assert not have_sidecars([file], store.find_all(expected))
        assert len(check_sidecars(file, store.find_all(expected))) == len(described.sidecars)
        write_sidecars(Observer(), file)
        assert {other: (tmp_path / other).read_bytes() for other in expected} == expected
        assert have_sidecars([file], store.find_all(expected))
        assert check_sidecars(file, store.find_all(expected)) == []
    assert [*(tmp_path / ".fineweb-shards").iterdir()] == []


def test_two_attempts_share_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster the first may still be running when the second begins and ends: neither meets the other's file, and
    one that fails leaves none."""
    layout = LAYOUTS[WITH_SIDECARS[0]]
    expected = layout_reference.shard_files(layout.name, "train", 0, [EOT, 7, 8, EOT])
    name = next(iter(expected))
    (tmp_path / name).write_bytes(expected[name])
    work = tmp_path / ".fineweb-shards"
    work.mkdir()
    file = FinishedFile(FolderStore(tmp_path), name, 2, None, ShardFormat(layout, GPT2), layout.sidecars)
    real = sidecars._find_eots

    def find_after_another(*arguments: Any) -> Iterator[Positions]:
        monkeypatch.setattr(sidecars, "_find_eots", real)
        write_sidecars(Observer(), file)
        return real(*arguments)

    monkeypatch.setattr(sidecars, "_find_eots", find_after_another)
    write_sidecars(Observer(), file)
    assert {other: (tmp_path / other).read_bytes() for other in expected} == expected

    def fail(*arguments: Any) -> Iterator[Positions]:
        assert list(work.iterdir())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sidecars, "_find_eots", fail)
    with pytest.raises(OutputError):
        write_sidecars(Observer(), file)
    assert not list(work.iterdir())


class CountingStore(FolderStore):
    """Notes which files are opened."""

    def open(self, file: FoundFile) -> BinaryIO:
        OPENED.append(file.name)
        return super().open(file)

    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        return (self.folder / file.name).read_bytes()[begin:end]


OPENED: list[str] = []


@pytest.mark.parametrize("layout", WITH_SIDECARS)
def test_a_file_is_read_once_for_all_of_its_sidecars(tmp_path: Path, layout: str) -> None:
    """When they are written, and when they are checked; bytes out of a bucket cost money."""
    (tmp_path / ".fineweb-shards").mkdir()
    tokens = make_tokens(4000, 30, ends_with_eot=False)
    name, data = next(iter(layout_reference.shard_files(layout, "train", 0, tokens).items()))
    (tmp_path / name).write_bytes(data)
    described, store = LAYOUTS[layout], CountingStore(tmp_path)
    beside = (*described.sidecars, DocumentIndex())
    file = FinishedFile(store, name, 30, None, ShardFormat(described, GPT2), beside)
    names = [name, *(sidecar.name_for(name) for sidecar in beside)]
    OPENED.clear()
    write_sidecars(Observer(), file)
    assert [*OPENED] == [name]
    OPENED.clear()
    assert check_sidecars(file, store.find_all(names)) == []
    assert sorted(OPENED) == sorted(names)
    for damaged in names[1:]:
        before = (tmp_path / damaged).read_bytes()
        for content, words in ((before[:-1] + b"?", "does not match"), (before + b"?", "bytes long")):
            (tmp_path / damaged).write_bytes(content)
            (told,) = check_sidecars(file, store.find_all(names))
            assert told.startswith(f"{damaged}: ")
            assert words in told
        (tmp_path / damaged).write_bytes(before)


@pytest.mark.parametrize("layout", WITH_SIDECARS)
def test_one_pass_takes_constant_memory(layout: str) -> None:
    """Some read on before others, and some not at all: what all have read is not kept."""
    described = LAYOUTS[layout]
    beside = (*described.sidecars, DocumentIndex())
    blocks: list[weakref.ref[Positions]] = []
    most = 0

    def make_blocks() -> Iterator[Positions]:
        for number in range(300):
            block = np.arange(number * 2000, number * 2000 + 2000, 2)
            blocks.append(weakref.ref(block))
            yield block

    facts = FileFacts(600_000, described.dtype(GPT2), GPT2, described.eot_first, 300_000, True, False)
    eots = np.arange(0, 600_000, 2)
    made: dict[Sidecar, dict[int, bytes]] = {sidecar: {} for sidecar in beside}
    for sidecar, part in parts_of_all(beside, facts, make_blocks()):
        made[sidecar][part.offset] = part.data
        most = max(most, sum(block() is not None for block in blocks))
    assert most < 10
    for sidecar in beside:
        assert made[sidecar] == {part.offset: part.data for part in sidecar.parts(facts, cut(eots, 1000))}
