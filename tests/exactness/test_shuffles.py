"""A shuffled build is a plain sort of all documents by their hashes, whatever it is made of, killed or not."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import ChangedError
from fineweb_shards.formats import jsonl
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run import shuffle
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import load_manifest
from fineweb_shards.watching.progress import Progress
from fineweb_shards.writing import piles
from tests.conftest import THREE_LAYOUTS
from tests.exactness.test_mixes import Part, draw_part, text_of, toml_of
from tests.support import inline, layout_reference, mix_reference, reference, runs, shuffle_reference
from tests.support.inputs import write_jsonl, write_text
from tests.support.layout_reference import EOT_FIRST, Wanted
from tests.support.promises import Tries

# The command with few tokens between checkpoints, and a given number of piles.
SMALL_STEPS = """
import sys
from fineweb_shards.commands.main import main
from fineweb_shards.run import shuffle
from fineweb_shards.writing import piles

shuffle.choose_count = lambda expected_bytes: int(sys.argv[1])
piles._TOKENS_PER_PILE = 1
sys.exit(main(sys.argv[2:]))
"""


def cut(documents: Sequence[list[int]], limit: int | None, *, eot_first: bool) -> list[list[int]]:
    """The documents, each with its EOT first, of the first `limit` tokens. Where the EOT comes last one that is cut has
    none, and is left out."""
    if limit is None:
        return list(documents)
    kept: list[list[int]] = []
    for document in documents:
        left = limit - sum(map(len, kept))
        if len(document) <= left:
            kept.append(document)
            continue
        if left and eot_first:
            kept.append(document[:left])
        return kept
    return kept


class Shuffle:
    """A shuffle of one part or of a mix, drawn by a seed, and the files that it must give."""

    def __init__(self, seed: int, layouts: Sequence[str]) -> None:
        chooser = random.Random(seed)
        self.seed = chooser.choice([0, seed, 2**62])
        self.piles = chooser.choice([1, 2, 7, 64, 512])
        count = chooser.choice([1, 1, 2, 3])
        self.parts = tuple(draw_part(chooser) for _ in range(count))
        self.mixed = count > 1 and chooser.random() < 0.5
        self.until = chooser.choice(["first-exhausted", "all-exhausted"])
        shard_tokens = chooser.choice([500, 5_000, 50_000])
        split: dict[str, Any] = chooser.choice([
            {}, {"val_tokens": shard_tokens // 3}, {"val_documents": 7}, {"val_ratio": Fraction(1, 5)},
        ])  # fmt: skip
        if chooser.random() < 0.25:
            self.parts = tuple(
                Part(**{**vars(part), "val_files": chooser.randint(0, len(part.files) - 1)}) for part in self.parts
            )
        layout, limit = chooser.choice(layouts), chooser.choice([None, None, shard_tokens * 2 + 77])
        documents, validation = self.stream()
        self.eot_first = EOT_FIRST.get(layout, False)
        taken = cut([*validation, *documents], limit, eot_first=self.eot_first)
        if self.has_val_files:
            split = {"val_documents": min(len(validation), len(taken))}
        self.wanted = Wanted(layout, shard_tokens, index=chooser.random() < 0.2, **split)
        self.limit = limit
        found = shuffle_reference.shuffled(taken, self.seed, len(validation))
        self._expected = layout_reference.files_of_tokens([tokens[1:] for tokens in found], self.wanted)

    def expected(self) -> dict[str, bytes]:
        return self._expected

    @property
    def has_val_files(self) -> bool:
        return any(part.val_files for part in self.parts)

    def stream(self) -> tuple[list[list[int]], list[list[int]]]:
        """All documents for training, before they are shuffled, and those of files for validation."""
        validation = [part.documents(part.files[: part.val_files]) for part in self.parts]
        training = [part.documents(part.files[part.val_files :]) for part in self.parts]
        epochs = [part.epochs for part in self.parts]
        of_val = [document for part in validation for document in part]
        if not self.mixed:
            return [one for part, n in zip(training, epochs, strict=True) for one in part * n], of_val
        weights = [part.weight for part in self.parts]
        return [one for _, one in mix_reference.mix(training, weights, self.until, epochs)], of_val

    def settings(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        own = [part.write(folder / str(number)) for number, part in enumerate(self.parts)]
        settings: dict[str, Any] = {**self.wanted.settings(), "shuffle": self.seed, "max_tokens": self.limit}
        if not self.mixed:
            own = [{name: value for name, value in part.items() if name != "weight"} for part in own]
        elif len(own) > 1:
            settings["mix_until"] = self.until
        if self.has_val_files:
            settings["val_documents"] = None  # the files say it
        return {**settings, "parts": tuple(own)}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piles, "_TOKENS_PER_PILE", 1)


@pytest.mark.promise("a shuffle is a plain sort")
@pytest.mark.usefixtures("small_steps")
def test_random_shuffles_are_the_reference_resumed_or_not(
    tmp_path: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, soak: bool
) -> None:
    """Parts of any form, mixed or not, lengths, validation, limits, layouts and piles; the same from any record."""
    for seed in tries(40, 200):
        chooser, folder = random.Random(seed), tmp_path / str(seed)
        one = Shuffle(seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        monkeypatch.setattr(shuffle, "choose_count", lambda _, count=one.piles: count)
        settings, out = one.settings(folder), folder / "out"
        manifest = runs.build_inline(out, batch_bytes=chooser.choice([1024, 5000, 10**6]), **settings)
        assert runs.outputs_in(out) == one.expected(), seed
        assert verify_folder(FolderStore(out)).damages == []
        assert not (out / ".fineweb-shards" / "piles").exists()
        if manifest.shards:
            runs.forget_after(out, chooser.randrange(len(manifest.shards)))
            again = runs.build_inline(out, batch_bytes=chooser.choice([1024, 7000, 10**6]), **settings)
            assert runs.outputs_in(out) == one.expected(), seed
            assert again.totals == manifest.totals or one.limit is not None or one.mixed
        shutil.rmtree(folder)


@pytest.mark.promise("a shuffle is a plain sort")
def test_shuffles_with_workers_that_are_killed_are_the_reference(tmp_path: Path, tries: Tries, soak: bool) -> None:
    """With one to three workers; parent and workers are killed at any moment of either pass, and the same command
    resumes."""
    for seed in tries(4, 50):
        chooser, folder = random.Random(1000 + seed), tmp_path / str(seed)
        one = Shuffle(1000 + seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        settings, out = one.settings(folder), folder / "out"
        (folder / "shuffle.toml").write_text(toml_of(settings))
        words = list(map(str, [
            sys.executable, "-c", SMALL_STEPS, one.piles, "build", folder / "shuffle.toml", "--out", out,
            "--engine", "tiktoken", "--workers", 1 + seed % 3, "--batch-bytes", chooser.choice([2000, 20_000]),
            "--quiet",
        ]))  # fmt: skip
        for _ in range(chooser.randint(0, 3)):
            run = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
            time.sleep(chooser.uniform(0.3, 3.5))
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if one.expected() else 3), done.stderr
        assert runs.outputs_in(out) == one.expected()


DOCUMENTS = [text_of(random.Random(seed)) for seed in range(150)]


def expected_of(documents: Sequence[str], seed: int, shard_tokens: int) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(shuffle_reference.shuffled(documents, seed)), shard_tokens)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("name", ["0002", "documents"])
def test_a_damaged_pile_is_made_again_and_finished_shards_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, name: str
) -> None:
    """Between the passes, or in the second one: a changed byte is told, and the next run makes the piles again."""
    monkeypatch.setattr(shuffle, "choose_count", lambda _: 3)
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    pile = out / ".fineweb-shards" / "piles" / name

    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # with some shards
        patch.setattr(Progress, "finish_shards", stop_after(3, stop))
        with pytest.raises(KeyboardInterrupt):
            runs.build_inline(out, path, shuffle=5, shard_tokens=2000, batch_bytes=4000)
    data = bytearray(pile.read_bytes())
    if damage == "remove":
        pile.unlink()
    elif damage == "cut":
        pile.write_bytes(data[:-2])
    else:
        data[len(data) // 2] ^= 1
        pile.write_bytes(data)
    done = inline.run_command("build", "--input", path, "--out", out, "--shuffle", 5, "--shard-tokens", 2000)
    if done.returncode:
        assert (done.returncode, damage, name) == (7, "flip", "0002"), done.stderr
        assert f"{pile}: this file of the shuffle has changed since it was written." in done.stderr
        done = inline.run_command("build", "--input", path, "--out", out, "--shuffle", 5, "--shard-tokens", 2000)
    assert done.returncode == 0, done.stderr
    assert "the first pass of the shuffle begins anew" in done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


def stop_after(calls: int, action: Any) -> Any:
    counter = itertools.count(1)
    return lambda *arguments: action() if next(counter) == calls else None


def test_another_seed_or_end_is_refused(tmp_path: Path) -> None:
    """A shuffled folder neither grows nor continues in another order."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    words = ["build", "--input", path, "--out", out, "--shard-tokens", 2000, "--max-tokens", 5000]
    assert inline.run_command(*words, "--shuffle", 5).returncode == 0
    for changed, text in (
        (["--shuffle", 6], "--shuffle was 5 when this folder was begun and is 6 now"),
        ([], "--shuffle was 5 when this folder was begun and is not set now"),
        (["--shuffle", 5, "--max-tokens", 9000], "--max-tokens was 5,000 when this folder was begun and is 9,000 now"),
    ):
        done = inline.run_command(*words, *changed)
        assert done.returncode != 0
        assert text in done.stderr


def test_piles_are_in_the_scratch_folder_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out, scratch = write_text(tmp_path / "a.txt", DOCUMENTS[:40]), tmp_path / "out", tmp_path / "scratch"
    seen: list[Path] = []
    made = shuffle.make_piles

    def make(*arguments: Any) -> Any:
        manifest = made(*arguments)
        seen.extend(scratch.rglob("documents"))
        return manifest

    monkeypatch.setattr("fineweb_shards.run.build.make_piles", make)
    words = ["build", "--input", path, "--out", out, "--shuffle", 1, "--shard-tokens", 2000, "--scratch", scratch]
    assert inline.run_command(*words).returncode == 0
    assert len(seen) == 1
    assert list(scratch.iterdir()) == []
    manifest = load_manifest(out)
    assert manifest is not None
    assert manifest.is_shuffled
    assert json.loads((out / "manifest.json").read_text())["format"] == 6


@pytest.mark.usefixtures("small_steps")
def test_other_piles_than_those_of_finished_shards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first pass has to be made again with another --on-bad-file, which a resume may have."""
    monkeypatch.setattr(shuffle, "choose_count", lambda _: 3)
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"

    def stop() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # with some shards
        patch.setattr(Progress, "finish_shards", stop_after(3, stop))
        with pytest.raises(KeyboardInterrupt):
            runs.build_inline(out, path, shuffle=5, shard_tokens=2000, batch_bytes=4000)
    (out / ".fineweb-shards" / "piles" / "0003").unlink()
    before = runs.outputs_in(out)

    def skip(self: Any, file: Any, batch: Any) -> Any:
        return itertools.islice(chunks(self, file, batch), 1, None)

    chunks = jsonl.JsonLinesFormat.chunks
    monkeypatch.setattr(jsonl.JsonLinesFormat, "chunks", skip)
    with pytest.raises(ChangedError, match="the first pass of the shuffle was made again, and gave other documents"):
        runs.build_inline(out, path, shuffle=5, shard_tokens=2000, batch_bytes=100_000)
    assert runs.outputs_in(out) == before
