"""A loader that follows a build: batches from finished shards only, in an order that no timing changes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.loader import shards as shards_module
from fineweb_shards.output.shard_files import growing_path
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.retry import Clock
from tests.support import loader_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import FakeClock
from tests.support.inputs import write_text
from tests.support.loader_reference import Ids

BATCH, LENGTH = 2, 80
SHARD_TOKENS = 2000
DOCUMENTS = [text for text in make_documents(100, seed=83) if text and "<|endoftext|>" not in text]
SETTINGS: list[dict[str, Any]] = [
    {"align": "document"},
    {"align": "document", "seed": 5},
    {"align": "document", "seed": 5, "shuffle": "documents"},
    {"seed": 5, "shuffle": "documents"},
    {"seed": 5},
]


def joined(batch: tuple[Any, Any]) -> list[Ids]:
    """The rows of a batch with their last targets."""
    x, y = batch
    assert np.array_equal(x[:, 1:], y[:, :-1])
    return np.column_stack([x, y[:, -1]]).tolist()


def take_all(loader: ShardLoader, found: list[Ids]) -> None:
    """Add the rows of all batches to `found`, until the loader raises an error."""
    for batch in loader:
        found += joined(batch)


def loader_of(folder: Path, rank: int = 0, ranks: int = 1, **settings: Any) -> ShardLoader:
    return ShardLoader(
        folder, batch_size=BATCH, seq_len=LENGTH, rank=rank, world_size=ranks, framework="numpy", **settings
    )


def training_stream(layout: str, documents: list[str]) -> tuple[Ids, bool]:
    """The tokens for training, and whether their first document began in validation; by tiktoken alone."""
    whole = reference.stream(documents).tolist()
    if layout in ("plain", "megatron"):
        return [*whole[1:], reference.EOT], False  # EOT after each document, and everything for training
    if layout == "nanogpt":
        whole = [*whole[1:], reference.EOT]
    return whole[SHARD_TOKENS:], whole[SHARD_TOKENS - 1] != reference.EOT


def expected_rows(
    layout: str, lengths: list[int], epoch: int, settings: dict[str, Any], documents: list[str] = DOCUMENTS
) -> list[Ids]:
    stream, mid_document = training_stream(layout, documents)
    ends = [0, *itertools.accumulate(lengths)]
    assert ends[-1] == len(stream)
    return loader_reference.epoch_rows(
        [stream[a:b] for a, b in itertools.pairwise(ends)],
        LENGTH,
        eot=reference.EOT,
        eot_first=layout not in ("plain", "megatron", "nanogpt"),
        first_mid_document=mid_document,
        aligned="align" in settings,
        shuffle=settings.get("shuffle", "rows" if "seed" in settings else ""),
        seed=settings.get("seed"),
        epoch=epoch,
        shards_in_order=epoch == 0,
    )


class Rehearsal(FakeClock):
    """A finished folder, put back to the start of its build; it grows by a checkpoint with each sleep."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.data = json.loads((folder / "manifest.json").read_text())
        self.records = self.data["shards"]
        self.finished = 0
        if self.data["settings"]["layout"] in ("nanogpt", "megatron"):
            for name in {record["name"] for record in self.records}:
                os.replace(folder / name, growing_path(folder / name))
        self.show()

    @property
    def training_lengths(self) -> list[int]:
        return [record["tokens"] for record in self.records if record["split"] == "train"]

    def show(self) -> None:
        """Let the folder have a manifest of the first records only; all of them are a complete build."""
        complete = self.finished > len(self.records)
        if complete:
            for name in {record["name"] for record in self.records}:
                if growing_path(self.folder / name).exists():
                    os.replace(growing_path(self.folder / name), self.folder / name)
        shown = {**self.data, "shards": self.records[: self.finished], "complete": complete}
        if not complete:
            shown["totals"] = {}
        runs.write_manifest(self.folder, shown)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.finished <= len(self.records):
            self.finished += 1
            ends = [record["end"] for record in self.records]
            while 0 < self.finished < len(ends) and ends[self.finished] == ends[self.finished - 1]:
                self.finished += 1  # the records of a checkpoint come together
            self.show()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The finished folder of a layout, built once."""
    folder = tmp_path_factory.mktemp("built")
    path = write_text(folder / "a.txt", DOCUMENTS)

    @cache
    def build(layout: str) -> Path:
        more = {"val_tokens": SHARD_TOKENS} if layout == "nanogpt" else {}
        runs.build_inline(folder / layout, path, layout=layout, shard_tokens=SHARD_TOKENS, **more)
        return folder / layout

    return build


@pytest.fixture
def rehearse(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Rehearsal]:
    """Puts a copy of the folder of a layout back to the start."""

    def start(layout: str) -> Rehearsal:
        shutil.copytree(built(layout), tmp_path / "out")
        clock = Rehearsal(tmp_path / "out")
        monkeypatch.setattr(shards_module, "Clock", lambda: clock)
        return clock

    return start


@pytest.mark.full(but=["document-build-nanogpt"])
@pytest.mark.parametrize("layout", ["build-nanogpt", "plain", "nanogpt", "megatron"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: "-".join(map(str, one.values())))
def test_the_order_is_that_of_the_shards(
    rehearse: Callable[[str], Rehearsal], layout: str, settings: dict[str, Any]
) -> None:
    """On two ranks that see the shards at different times, in the first epoch and, shuffled, in the second; and from a
    state that was saved at any batch, whatever is finished by then."""
    build = rehearse(layout)
    assert len(build.training_lengths) > 3
    loaders = [loader_of(build.folder, rank, 2, follow=True, **settings) for rank in range(2)]
    with pytest.raises(TypeError, match="until the build is complete"):
        len(loaders[0])
    for epoch in range(2):
        rows = expected_rows(layout, build.training_lengths, epoch, settings)
        expected = [loader_reference.batches_of_rank(rows, BATCH, rank, 2) for rank in range(2)]
        assert len(expected[0]) > 10
        for number, batches in enumerate(zip(*expected, strict=True)):
            if epoch == 0 and number == 2:
                assert not loaders[0]._shards.complete, "the build must still go on"
            resumed = loader_of(build.folder, 1, 2, follow=True, **settings)
            resumed.load_state_dict(loaders[0].state_dict())
            for loader, batch in zip(loaders, batches, strict=True):
                assert joined(loader.next_batch()) == batch
            assert joined(resumed.next_batch()) == batches[1]
        assert [loader.epoch for loader in loaders] == [epoch + 1] * 2
        assert [loader.count_batches(epoch) for loader in loaders] == [len(expected[0])] * 2


def test_without_a_seed_the_batches_are_those_of_the_finished_folder(rehearse: Callable[[str], Rehearsal]) -> None:
    """DataLoaderLite's order, which test_shard_loader.py checks; and one who follows late sees the same."""
    build = rehearse("build-nanogpt")
    loaders = [loader_of(build.folder, rank, 2, follow=True) for rank in range(2)]
    found = [[joined(batch) for batch in loader.epoch_batches(0)] for loader in loaders]
    late = [[joined(batch) for batch in loader_of(build.folder, rank, 2).epoch_batches(0)] for rank in (0, 1)]
    assert found == late
    assert len(found[0]) > 10


@pytest.mark.full
def test_a_build_that_is_running_is_waited_for(
    rehearse: Callable[[str], Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes for a shard: the lock says that it runs. The pauses are short at first, and never longer
    than seconds."""
    build = rehearse("plain")
    patient = FakeClock()

    def sleep(seconds: float) -> None:
        FakeClock.sleep(patient, seconds)
        if patient.seconds > 100_000:
            build.sleep(0)

    monkeypatch.setattr(patient, "sleep", sleep)
    monkeypatch.setattr(shards_module, "Clock", lambda: patient)
    with FolderLock(build.folder):
        loader_of(build.folder, follow=True, patience_seconds=10.0).next_batch()
    assert patient.waits[0] < 0.1
    assert max(patient.waits) == 5.0


def test_a_build_that_has_stopped_is_an_error_after_a_while(
    rehearse: Callable[[str], Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder, what is finished and the next step; and when it was resumed the loader goes on."""
    build = rehearse("build-nanogpt")
    rows = expected_rows("build-nanogpt", build.training_lengths, 0, {"align": "document"})
    for _ in range(3):
        build.sleep(0)
    clock = FakeClock()
    monkeypatch.setattr(shards_module, "Clock", lambda: clock)
    loader = loader_of(build.folder, follow=True, align="document")
    found: list[Ids] = []
    sentence = r"out: .* stopped before its end, with 2 shards of 'train'"
    with pytest.raises(InputError, match=sentence) as error:
        take_all(loader, found)
    assert "10 min" in error.value.message
    assert "fineweb-shards status" in error.value.hint
    assert 600 <= clock.seconds < 610
    monkeypatch.setattr(clock, "sleep", build.sleep)
    found += [row for batch in loader.epoch_batches(0, len(found) // BATCH) for row in joined(batch)]
    assert found == rows[: len(rows) // BATCH * BATCH]


def test_another_build_in_the_folder_is_noticed(rehearse: Callable[[str], Rehearsal]) -> None:
    """What was given is no longer what is there."""
    build = rehearse("plain")
    loader = loader_of(build.folder, follow=True)
    loader.next_batch()
    build.records[0]["sha256"] = "0" * 64
    for _ in range(2):  # whoever goes on in spite of it hears it again
        with pytest.raises(ChangedError, match=r"train_shard_0000.bin has changed since it was read"):
            list(loader.epoch_batches(0))


def test_what_cannot_be_followed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of files, a folder that does not exist, or one in which nobody begins a build."""
    monkeypatch.setattr(shards_module, "Clock", FakeClock)
    with pytest.raises(InputError, match="no build was started here within 10 min"):
        ShardLoader(tmp_path, batch_size=1, seq_len=1, follow=True).next_batch()
    with pytest.raises(ValueError, match="needs a folder"):
        ShardLoader([tmp_path / "a.npy"], batch_size=1, seq_len=1, follow=True)
    with pytest.raises(InputError, match="no such folder"):
        ShardLoader(tmp_path / "nothing", batch_size=1, seq_len=1, follow=True)


class Feeder(Clock):
    """Gives a build that reads from a pipe some more text whenever the loader waits for it."""

    def __init__(self, out: Path, layout: str, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.sleeps = 0
        self.words = runs.command(
            "build", "-", "--separator", "<|endoftext|>", "--out", out, "--layout", layout,
            "--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "4k", "--workers", "1",
        )  # fmt: skip
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not out.is_dir() and self.process.poll() is None:  # it makes its folder when there is input
            self.sleep(0)

    def sleep(self, seconds: float) -> None:
        if self.pieces:
            self.feed(self.pieces.pop(0))
        self.sleeps += 1
        assert self.sleeps < 10_000, "the build makes no shards"
        time.sleep(0.02)

    def feed(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def finish(self, text: bytes) -> None:
        """Give it the rest: only now can it end."""
        assert self.process.stdin is not None
        self.feed(b"".join(self.pieces) + text)
        self.pieces = []
        self.process.stdin.close()


# Enough that a build has made some shards before it has seen the end: it reads a pipe in large pieces.
PIPED = DOCUMENTS * 5
TEXT = "<|endoftext|>".join(PIPED).encode()
PIECES = [TEXT[begin : begin + 40_000] for begin in range(0, len(TEXT), 40_000)]


@pytest.mark.full
@pytest.mark.parametrize("layout", ["build-nanogpt", "megatron"])
def test_training_beside_a_real_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """The first batches come before the build has all its input, and in the end every one is right."""
    build = Feeder(tmp_path / "out", layout, PIECES[:-1])
    monkeypatch.setattr(shards_module, "Clock", lambda: build)
    with build.process:
        loader = loader_of(tmp_path / "out", follow=True, align="document", seed=7)
        found = joined(loader.next_batch())
        build.finish(PIECES[-1])
        found += [row for batch in loader.epoch_batches(0, 1) for row in joined(batch)]
        assert build.process.wait() == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    lengths = [record["tokens"] for record in manifest["shards"] if record["split"] == "train"]
    rows = expected_rows(layout, lengths, 0, {"align": "document", "seed": 7}, PIPED)
    assert found == rows[: len(rows) // BATCH * BATCH]


@pytest.mark.full
def test_a_real_build_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader has given every batch of the finished shards when it says so; after a resume, the rest."""
    build = Feeder(tmp_path / "out", "build-nanogpt", PIECES[:-1])
    monkeypatch.setattr(shards_module, "Clock", lambda: build)
    found: list[Ids] = []
    with build.process:
        loader = loader_of(tmp_path / "out", follow=True, align="document", patience_seconds=0.5)
        found += joined(loader.next_batch())
        build.process.kill()
        build.pieces = []
        with pytest.raises(InputError, match="stopped before its end"):
            take_all(loader, found)
    lengths = [len(np.load(path)) for path in sorted((tmp_path / "out").glob("*train*"))]
    assert sum(lengths) < len(training_stream("build-nanogpt", PIPED)[0])
    subprocess.run(build.words, input=TEXT, check=True, capture_output=True)
    found += [row for batch in loader.epoch_batches(0, len(found) // BATCH) for row in joined(batch)]
    lengths = [len(np.load(path)) for path in sorted((tmp_path / "out").glob("*train*"))]
    rows = expected_rows("build-nanogpt", lengths, 0, {"align": "document"}, PIPED)
    assert found == rows[: len(rows) // BATCH * BATCH]
