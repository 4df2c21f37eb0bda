"""A shuffled build is a plain sort of all documents by their hashes, whatever it is made of, killed or not."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import ChangedError, Interrupted
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import InProcessPlane
from fineweb_shards.formats import jsonl
from fineweb_shards.formats import piles as pile_format
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.reading import verify
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run import resources, shuffle
from fineweb_shards.run.config import Config
from fineweb_shards.stream.section import Section
from fineweb_shards.system.durable import is_locked
from fineweb_shards.types import ShardSlice
from fineweb_shards.watching.progress import Progress
from fineweb_shards.writing import piles
from fineweb_shards.writing.placement import Output
from tests.conftest import THREE_LAYOUTS
from tests.exactness.test_mixes import Part, draw_part, text_of, toml_of
from tests.support import inline, layout_reference, mix_reference, reference, runs, shuffle_reference
from tests.support.bucket_view import BucketView
from tests.support.doubles import AtOncePlane
from tests.support.inputs import write_jsonl, write_text
from tests.support.layout_reference import EOT_FIRST, Wanted
from tests.support.promises import Tries

# The command with few tokens between checkpoints, and a given number of piles.
SMALL_STEPS = """
import sys
from fineweb_shards.commands.main import main
from fineweb_shards.run import shuffle
from fineweb_shards.writing import piles

shuffle.choose_count = lambda *_: int(sys.argv[1])
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
    """Parts of any form, mixed or not, lengths, validation, limits, layouts and piles, whose lists are read in parts of
    any size; the same from any record."""
    for seed in tries(20, 200):
        chooser, folder = random.Random(seed), tmp_path / str(seed)
        one = Shuffle(seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        monkeypatch.setattr(shuffle, "choose_count", lambda *_, count=one.piles: count)
        monkeypatch.setattr(pile_format, "MOST_IN_PART", chooser.choice([9, 10**6]))
        settings, out = one.settings(folder), folder / "out"
        manifest = runs.build_inline(out, batch_bytes=chooser.choice([1024, 5000, 10**6]), **settings)
        assert runs.outputs_in(out) == one.expected(), seed
        assert verify_folder(FolderStore(out)).damages == []
        assert not (out / ".fineweb-shards" / "piles").exists()
        if manifest.shards:
            runs.forget_after(out, chooser.randrange(len(manifest.shards)))
            monkeypatch.setattr(pile_format, "MOST_IN_PART", chooser.choice([9, 10**6]))
            again = runs.build_inline(out, batch_bytes=chooser.choice([1024, 7000, 10**6]), **settings)
            assert runs.outputs_in(out) == one.expected(), seed
            assert again.totals == manifest.totals or one.limit is not None or one.mixed
        shutil.rmtree(folder)


@pytest.mark.promise("a shuffle is a plain sort")
def test_a_first_pass_that_is_stopped_keeps_what_is_placed(
    tmp_path: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, soak: bool
) -> None:
    """However little that is, with a checkpoint at the end of the run alone, or, on slow input, after each section."""
    stops = 0
    for seed in tries(5, 80):
        monkeypatch.setattr(piles, "_CHECKPOINT_SECONDS", 0 if seed % 2 else 10**9)
        folder, chooser = tmp_path / str(seed), random.Random(seed)
        one = Shuffle(2000 + seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        monkeypatch.setattr(shuffle, "choose_count", lambda *_, count=one.piles: count)
        settings, out = {**one.settings(folder), "batch_bytes": 1024}, folder / "out"
        with monkeypatch.context() as patch:
            placed = stop_in_place(patch, chooser.randint(1, 9))
            with contextlib.suppress(Interrupted):
                runs.build_inline(out, **settings)
        manifest = load_manifest(out)
        assert manifest is not None
        if manifest.pass_number == 1:
            stops += 1
            assert manifest.piled_tokens == sum(placed)
        runs.build_inline(out, **settings)
        assert runs.outputs_in(out) == one.expected(), seed
        shutil.rmtree(folder)
    assert stops


def stop_in_place(patch: pytest.MonkeyPatch, sections: int) -> list[int]:
    """Ctrl-C comes in the middle of a section, after so many whole ones of the first pass; return a list to which the
    tokens of those come."""
    add, placed = piles.PileOutput.add, []

    def stop(parts: list[ShardSlice]) -> Iterator[ShardSlice]:
        yield from parts[:1]
        raise Interrupted("Interrupted.", 130)

    def add_and_stop(self: piles.PileOutput, section: Section, slices: Iterable[ShardSlice]) -> None:
        parts = list(slices)
        add(self, section, stop(parts) if len(placed) == sections else parts)
        placed.append(sum(part.tokens for part in parts))

    patch.setattr(piles.PileOutput, "add", add_and_stop)
    return placed


def test_a_first_pass_of_an_export_that_is_stopped_keeps_what_is_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, built, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "built", tmp_path / "out"
    runs.build_inline(built, path, shard_tokens=2000, layout="megatron")
    monkeypatch.setattr(verify, "BLOCK_TOKENS", 777)
    before = 0
    for sections in (1, 5, 9):
        with monkeypatch.context() as patch:
            placed = stop_in_place(patch, sections)
            done = inline.run_command("export", built, "--out", out, "--layout", "build-nanogpt", *WORDS[:4])
            assert done.returncode == 130, done.stderr
        manifest = load_manifest(out)
        assert manifest is not None
        assert manifest.piled_tokens == before + sum(placed) > before
        before = manifest.piled_tokens
    done = inline.run_command("export", built, "--out", out, "--layout", "build-nanogpt", *WORDS[:4])
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.promise("a shuffle is a plain sort")
def test_shuffles_with_workers_that_are_killed_are_the_reference(tmp_path: Path, tries: Tries, soak: bool) -> None:
    """With one to three workers; parent and workers are killed at any moment of either pass, and the same command
    resumes."""
    for seed in tries(2, 50):
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
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 3)
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
    assert "the first pass of the shuffle is repeated" in done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.usefixtures("small_steps", "three_piles")
@pytest.mark.parametrize("command", ["build", "export"])
def test_piles_are_made_again_on_a_disk_that_the_old_ones_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """They are removed before the space is looked at; finished shards are kept."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    pile_folder = out / ".fineweb-shards" / "piles"
    words = ["build", "--input", path, "--out", out, *WORDS]
    if command == "export":
        runs.build_inline(tmp_path / "built", path, shard_tokens=2000)
        words = ["export", tmp_path / "built", "--out", out, *WORDS[:4]]
    with monkeypatch.context() as patch:
        stop_in_second_pass(patch)
        assert inline.run_command(*words).returncode == 130
    (pile_folder / "0003").unlink()
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: 0 if pile_folder.exists() else 10**9)
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.usefixtures("small_steps", "three_piles")
@pytest.mark.parametrize("name", ["0002", "documents"])
def test_a_damaged_pile_of_an_export_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As in a build: it is told, or noticed at once if it is the list, and finished shards are kept."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    runs.build_inline(tmp_path / "built", path, shard_tokens=2000)
    words = ["export", tmp_path / "built", "--out", out, *WORDS[:4]]
    with monkeypatch.context() as patch:
        stop_in_second_pass(patch)
        assert inline.run_command(*words).returncode == 130
    finished = runs.outputs_in(out)
    pile = out / ".fineweb-shards" / "piles" / name
    flip(pile)
    done = inline.run_command(*words)
    if name != "documents":
        assert done.returncode == 7, done.stderr
        assert f"{pile}: this file of the shuffle has changed since it was written." in done.stderr
        assert finished.items() <= runs.outputs_in(out).items()
        done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert "the first pass of the shuffle is repeated" in done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files")
def test_an_export_closes_its_piles_before_they_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file is open, its space is not free."""
    path, read, opened = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), shuffle.read_piles, []

    def look(*arguments: Any) -> Any:
        opened.extend(os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
        return read(*arguments)

    monkeypatch.setattr("fineweb_shards.run.shuffle.read_piles", look)
    runs.build_inline(tmp_path / "built", path, shard_tokens=2000)
    assert inline.run_command("export", tmp_path / "built", "--out", tmp_path / "out", *WORDS[:4]).returncode == 0
    assert opened
    assert not [name for name in opened if "/piles/" in name]


def stop_in_second_pass(patch: pytest.MonkeyPatch) -> None:
    """A build or an export is interrupted when it has recorded its first shards, of the first pile."""
    record = Output._record

    def record_and_stop(self: Output, *arguments: Any) -> None:
        record(self, *arguments)
        raise Interrupted("Interrupted.", 130)

    patch.setattr(InProcessPlane, "_start", AtOncePlane._start)
    patch.setattr(Output, "_record", record_and_stop)


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
    """With everything else that is made there, and the lock last: until then no other run may have the folder."""
    path, out, scratch = write_text(tmp_path / "a.txt", DOCUMENTS[:40]), tmp_path / "out", tmp_path / "scratch"
    seen: list[Path] = []
    made = shuffle.make_piles

    def make(*arguments: Any) -> Any:
        manifest = made(*arguments)
        seen.extend(scratch.rglob("documents"))
        return manifest

    def remove(spec: OutputSpec, config: Config, observer: Observer) -> None:
        removed(spec, config, observer)
        assert is_locked(config.pile_folder.parent.parent)

    removed = shuffle.remove_piles
    monkeypatch.setattr("fineweb_shards.run.shuffle.make_piles", make)
    monkeypatch.setattr("fineweb_shards.run.shuffle.remove_piles", remove)
    words = ["build", "--input", path, "--out", out, "--shuffle", 1, "--shard-tokens", 2000, "--scratch", scratch]
    for _ in range(2):  # also a run that finds everything done leaves nothing
        assert inline.run_command(*words).returncode == 0
        assert len(seen) == 1
        assert list(scratch.iterdir()) == []
    manifest = load_manifest(out)
    assert manifest is not None
    assert manifest.is_shuffled
    assert json.loads((out / "manifest.json").read_text())["format"] == 6


@pytest.mark.usefixtures("small_steps")
def test_other_piles_than_those_of_finished_shards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first pass has to be made again with another --on-bad-file, which a resume may have; with the right one it
    is made once more, and all is well."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 3)
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
    with monkeypatch.context() as patch:
        patch.setattr(jsonl.JsonLinesFormat, "chunks", skip)
        for _ in range(2):
            with pytest.raises(ChangedError, match="the shuffle was repeated, and yielded other documents"):
                runs.build_inline(out, path, shuffle=5, shard_tokens=2000, batch_bytes=100_000)
            assert runs.outputs_in(out) == before
    done = inline.run_command("build", "--input", path, "--out", out, *WORDS)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


WORDS = ("--shuffle", 5, "--shard-tokens", 2000, "--batch-bytes", 4000)


@pytest.fixture
def three_piles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 3)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("small_steps", "three_piles")
def test_damage_during_the_first_pass_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a checkpoint has recorded: the second pass tells it, and the next run makes all again."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"

    def stop() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shuffle.Parts, "release_before", stop_after(9, stop))
        with pytest.raises(KeyboardInterrupt):
            runs.build_inline(out, path, shuffle=5, shard_tokens=2000, batch_bytes=4000)
    manifest = load_manifest(out)
    assert manifest is not None
    assert manifest.piles is not None
    assert not manifest.piles.ended
    flip(out / ".fineweb-shards" / "piles" / "0002")
    words = ["build", "--input", path, "--out", out, *WORDS]
    done = inline.run_command(*words)
    assert done.returncode == 7, done.stderr
    assert "piles/0002: this file of the shuffle has changed since it was written." in done.stderr
    assert inline.run_command(*words).returncode == 0
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.usefixtures("small_steps", "three_piles")
@pytest.mark.parametrize("damage", ["flip", "cut", "longer"])
def test_damage_to_the_list_in_the_second_pass_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Whenever it is read; what is behind its end does not matter."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    listed, words = out / ".fineweb-shards" / "piles" / "documents", ["build", "--input", path, "--out", out, *WORDS]

    def damaged(*arguments: Any) -> Any:
        if damage == "flip":
            flip(listed)
        elif damage == "cut":
            listed.write_bytes(listed.read_bytes()[:-1])
        else:
            listed.write_bytes(listed.read_bytes() + b"x")
        return second_pass(*arguments)

    second_pass = shuffle.second_pass
    with monkeypatch.context() as patch:
        patch.setattr("fineweb_shards.run.shuffle.second_pass", damaged)
        done = inline.run_command(*words)
    if damage != "longer":
        assert done.returncode == 7, done.stderr
        assert f"{listed}: this file of the shuffle has changed since it was written." in done.stderr
        done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.usefixtures("three_piles")
def test_an_index_is_added_without_another_first_pass(tmp_path: Path) -> None:
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    assert inline.run_command("build", "--input", path, "--out", out, *WORDS).returncode == 0
    done = inline.run_command("build", "--input", path, "--out", out, *WORDS, "--index")
    assert done.returncode == 0, done.stderr
    assert "is repeated" not in done.stderr
    assert len(list((out / "index").iterdir())) == len(list(out.glob("*.npy")))


@pytest.mark.usefixtures("three_piles")
def test_an_input_without_documents_is_told_whenever_it_is_run(tmp_path: Path) -> None:
    path, out = write_jsonl(tmp_path / "a.jsonl", []), tmp_path / "out"
    for _ in range(2):
        done = inline.run_command("build", "--input", path, "--out", out, *WORDS)
        assert done.returncode == 3, done.stderr
        assert "The input has no documents" in done.stderr


@pytest.mark.usefixtures("small_steps", "three_piles")
@pytest.mark.parametrize("command", ["build", "export"])
def test_piles_are_not_lost_to_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Without a finished shard, either: they are refused by name, and only --fresh removes what is recorded."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    pile_folder = out / ".fineweb-shards" / "piles"
    words: list[Any] = ["build", "--input", path]
    if command == "export":
        runs.build_inline(tmp_path / "built", path, shard_tokens=2000)
        words = ["export", tmp_path / "built"]
    with monkeypatch.context() as patch:
        stop_first_pass(patch)
        assert inline.run_command(*words, "--out", out, *WORDS[:4]).returncode == 130
    before = {one.name: one.read_bytes() for one in pile_folder.iterdir()}
    for changed, text in (
        (["--shard-tokens", 2000], "--shuffle was 5 when this folder was begun and is not set now"),
        (["--shard-tokens", 3000, "--shuffle", 5], "--shard-tokens was 2,000 when this folder was begun and is 3,000"),
    ):
        done = inline.run_command(*words, "--out", out, *changed)
        assert done.returncode == 4, done.stderr
        assert text in done.stderr
        assert "--fresh" in done.stderr
    assert {one.name: one.read_bytes() for one in pile_folder.iterdir()} == before
    assert inline.run_command(*words, "--out", out, "--shard-tokens", 3000, "--fresh", "--yes").returncode == 0
    assert not pile_folder.exists()
    assert runs.outputs_in(out) == reference.shard_files(reference.stream(DOCUMENTS), 3000)


def stop_first_pass(patch: pytest.MonkeyPatch, checkpoints: int = 2) -> None:
    """A build or an export is interrupted when it has recorded so much of its first pass."""
    record, counter = piles.PileOutput._record, itertools.count(1)

    def record_and_stop(self: piles.PileOutput, *arguments: Any) -> None:
        record(self, *arguments)
        if next(counter) == checkpoints:
            raise Interrupted("Interrupted.", 130)

    patch.setattr(piles.PileOutput, "_record", record_and_stop)


@pytest.mark.usefixtures("small_steps", "three_piles")
@pytest.mark.parametrize(
    ("command", "begun", "resumed"),
    [("build", "one", "two"), ("build", "one", ""), ("build", "", "two"), ("export", "one", "")],
)
def test_piles_in_another_scratch_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, begun: str, resumed: str
) -> None:
    """Whoever forgets --scratch, or names another one, is told; the first pass is only made again if they are gone."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    words: list[Any] = ["build", "--input", path, "--out", out, *WORDS]
    if command == "export":
        runs.build_inline(tmp_path / "built", path, shard_tokens=2000)
        words = ["export", tmp_path / "built", "--out", out, *WORDS[:4]]

    def run(scratch: str) -> subprocess.CompletedProcess[str]:
        return inline.run_command(*words, *(["--scratch", tmp_path / scratch] if scratch else []))

    with monkeypatch.context() as patch:
        stop_in_second_pass(patch)
        assert run(begun).returncode == 130
    (pile_folder,) = (tmp_path / begun if begun else out).rglob("piles")
    done = run(resumed)
    assert done.returncode == 4, done.stderr
    assert f"the piles of this shuffle are in {pile_folder}." in done.stderr
    right = f"--scratch {tmp_path / begun}," if begun else "without --scratch,"
    assert f"Resume with the same --out and {right}" in done.stderr
    if command == "build":  # the right one continues, and leaves no trace
        done = run(begun)
    else:
        shutil.rmtree(pile_folder)
        done = run(resumed)
        assert "the first pass of the shuffle is repeated" in done.stderr
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)
    assert not (out / ".fineweb-shards" / "scratch").exists()


@pytest.mark.usefixtures("small_steps", "three_piles")
def test_piles_of_a_bucket_in_another_scratch_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_url: str, bucket_environment: str
) -> None:
    """The bucket has a note of where they are."""
    words = ["build", "--input", write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), "--out", f"{bucket_url}/out", *WORDS]
    with monkeypatch.context() as patch:
        stop_in_second_pass(patch)
        assert inline.run_command(*words, "--scratch", tmp_path / "one").returncode == 130
    done = inline.run_command(*words, "--scratch", tmp_path / "two")
    assert done.returncode == 4, done.stderr
    assert f"Resume with the same --out and --scratch {tmp_path / 'one'}," in done.stderr
    done = inline.run_command(*words, "--scratch", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    view = BucketView(bucket_environment, f"{bucket_url}/out")
    assert view.outputs() == expected_of(DOCUMENTS, 5, 2000)
    assert ".fineweb-shards/scratch" not in view.names()


def test_two_runs_never_share_a_scratch_folder(tmp_path: Path) -> None:
    """Another machine may have the same one, and the same path of another output."""
    path, scratch = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS[:9]), tmp_path / "scratch"
    words = ["build", "--input", path, "--out", tmp_path / "out", *WORDS, "--scratch", scratch]
    with shuffle.lock_scratch(Config(out=str(tmp_path / "out"), shuffle=5, scratch=str(scratch))):
        done = inline.run_command(*words)
    assert done.returncode == 6, done.stderr
    assert "another run is writing here" in done.stderr
    assert inline.run_command(*words).returncode == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.full
def test_few_open_files_are_enough(tmp_path: Path) -> None:
    """macOS allows 256 of them: a process raises that, or closes some on the way."""
    path, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    words = [sys.executable, "-c", SMALL_STEPS, 512, "build", "--input", path, "--out", out, *WORDS]
    limited = f"ulimit -Hn 200; {shlex.join(map(str, words))}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(DOCUMENTS, 5, 2000)


@pytest.mark.usefixtures("small_steps")
def test_a_shuffled_beginning_is_exported_with_its_last_document_whole(tmp_path: Path) -> None:
    """What --max-tokens has cut is somewhere in the middle, so nothing is missing at the end."""
    path, limit = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), 5000
    runs.build_inline(tmp_path / "built", path, shuffle=5, shard_tokens=2000, max_tokens=limit, val_tokens=0)
    documents = cut([[reference.EOT, *reference.encode(text)] for text in DOCUMENTS], limit, eot_first=True)
    found = [tokens[1:] for tokens in shuffle_reference.shuffled(documents, 5)]
    wanted = Wanted("megatron", 2000, val_tokens=0)
    runs.export(tmp_path / "built", tmp_path / "same", layout="build-nanogpt", val_tokens=0)
    for number, source in enumerate(("built", "same")):
        out = tmp_path / str(number)
        runs.export(tmp_path / source, out, layout="megatron", shard_tokens=2000, val_tokens=0)
        assert runs.outputs_in(out) == layout_reference.files_of_tokens(found, wanted)


@pytest.mark.full
def test_a_hundred_thousand_documents_and_one_of_a_million_tokens(tmp_path: Path) -> None:
    """With workers and twenty piles: many are empty or have a token, one is longer than any batch."""
    chooser = random.Random(7)
    documents = ["".join(chooser.choices(["a", " b", "c d"], k=chooser.choice([0, 1, 1, 2, 5]))) for _ in range(10**5)]
    documents[77_777] = " ".join(chooser.choices(["one", "two", "three"], k=10**6))
    path, out = write_jsonl(tmp_path / "a.jsonl", documents), tmp_path / "out"
    words = [
        sys.executable, "-c", SMALL_STEPS, 20, "build", "--input", path, "--out", out, "--shuffle", 5,
        "--shard-tokens", 300_000, "--workers", 2, "--batch-bytes", 100_000,
    ]  # fmt: skip
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == expected_of(documents, 5, 300_000)
