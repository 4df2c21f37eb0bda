"""A mix of parts by tokens is that of a plain loop over tiktoken, whatever its parts are, killed or not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading.verify import verify_folder
from tests.conftest import THREE_LAYOUTS
from tests.support import inline, layout_reference, mix_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_gzip, write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

TEXTS = [
    text for text in make_documents(400, seed=61) if text.strip() and "<|endoftext|>" not in text and "\r" not in text
]
FORMS = ("jsonl", "parquet", "txt", "csv", "gz")
UNTIL = ("first-exhausted", "all-exhausted")
MANY = 10**5  # tokens, of the longest documents


@dataclass(frozen=True)
class Part:
    """Documents in files of one form; the first `val_files` of them are for validation."""

    form: str
    files: tuple[tuple[str, ...], ...]
    weight: int
    epochs: int = 1
    least: int = 0
    most: int | None = None
    val_files: int = 0

    def write(self, folder: Path) -> dict[str, Any]:
        """Its settings."""
        folder.mkdir()
        paths = [write(folder / f"{number}.{self.form}", documents) for number, documents in enumerate(self.files)]
        return {
            "input": tuple(map(str, paths[self.val_files :])),
            "val_input": tuple(map(str, paths[: self.val_files])),
            "weight": self.weight, "epochs": self.epochs, "min_tokens": self.least, "max_document_tokens": self.most,
            **({"separator": "<|endoftext|>"} if self.form == "txt" else {}),
        }  # fmt: skip

    def documents(self, files: Sequence[Sequence[str]]) -> list[list[int]]:
        """Those of some of its files that are kept, with an EOT."""
        tokens = (reference.encode(text) for file in files for text in file)
        most = MANY * 10 if self.most is None else self.most
        return [[reference.EOT, *one] for one in tokens if self.least <= len(one) <= most]


def write(path: Path, documents: Sequence[str]) -> Path:
    match path.suffix:
        case ".jsonl":
            return write_jsonl(path, documents)
        case ".parquet":
            return write_parquet(path, documents, 7)
        case ".txt":
            return write_text(path, documents)
        case ".csv":
            return write_csv(path, documents)
    packed = write_jsonl(path.with_suffix(""), documents)
    write_gzip(path.with_suffix(".jsonl.gz"), packed.read_bytes())
    packed.unlink()
    return path.with_suffix(".jsonl.gz")


@dataclass(frozen=True)
class Mix:
    """A mix, and the files that it must give."""

    parts: tuple[Part, ...]
    until: str
    wanted: Wanted

    def settings(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        parts = tuple(part.write(folder / str(number)) for number, part in enumerate(self.parts))
        settings = {**self.wanted.settings(), "parts": parts, "mix_until": self.until}
        if any(part.val_files for part in self.parts):
            settings["val_documents"] = None  # the files say it
        return settings

    def expected(self) -> dict[str, bytes]:
        found = mix_reference.mix(
            [part.documents(part.files[part.val_files :]) for part in self.parts],
            [part.weight for part in self.parts],
            self.until,
            [part.epochs for part in self.parts],
            [part.documents(part.files[: part.val_files]) for part in self.parts],
        )
        return layout_reference.files_of_tokens([tokens[1:] for _, tokens in found], self.wanted)


def text_of(chooser: random.Random) -> str:
    """Of one to 10^5 tokens, mostly few."""
    length = int(10 ** chooser.triangular(0, 5, 1))
    if length < 1000:
        return chooser.choice(TEXTS)[: 4 * length].strip() or "a"
    return " ".join(chooser.choice(TEXTS) for _ in range(1 + length // 300))[: 4 * length]


def draw_part(chooser: random.Random) -> Part:
    files = tuple(
        tuple(text_of(chooser) for _ in range(chooser.choice([0, 1, 3, 20]))) for _ in range(chooser.randint(1, 3))
    )
    return Part(
        chooser.choice(FORMS),
        files,
        round(10 ** chooser.uniform(0, chooser.choice([1, 5]))),
        chooser.choice([1, 1, 2, 3]),
        chooser.choice([0, 0, 12]),
        chooser.choice([None, None, 400]),
    )


def draw_mix(seed: int, layouts: Sequence[str]) -> Mix:
    """2 to 6 parts with any weights and settings, a way to choose validation, and perhaps an end."""
    chooser = random.Random(seed)
    parts = tuple(draw_part(chooser) for _ in range(chooser.randint(2, 6)))
    if not any(part.documents(part.files) for part in parts):
        return draw_mix(seed + 10**6, layouts)
    shard_tokens = chooser.choice([500, 5_000, 50_000])
    split: dict[str, Any] = chooser.choice([
        {}, {"val_tokens": shard_tokens // 3}, {"val_documents": 7}, {"val_ratio": Fraction(1, 5), "val_seed": seed},
    ])  # fmt: skip
    if chooser.random() < 0.25:
        parts = tuple(Part(**{**vars(part), "val_files": chooser.randint(0, len(part.files) - 1)}) for part in parts)
        count = sum(len(part.documents(part.files[: part.val_files])) for part in parts)
        split = {"val_documents": count} if any(part.val_files for part in parts) else {}
    limit = chooser.choice([None, None, shard_tokens * 2 + 77])
    wanted = Wanted(chooser.choice(layouts), shard_tokens, max_tokens=limit, index=chooser.random() < 0.2, **split)
    return Mix(parts, chooser.choice(UNTIL), wanted)


@pytest.mark.promise("a mix is that of a plain loop")
def test_random_mixes_are_the_reference_resumed_or_not(tmp_path: Path, tries: Tries, soak: bool) -> None:
    """Parts of any form, weights, epochs, lengths, validation and layout; the same from any record, with other
    batches."""
    for seed in tries(30, 200):
        chooser, folder = random.Random(seed), tmp_path / str(seed)
        one = draw_mix(seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        settings, out = one.settings(folder), folder / "out"
        expected = one.expected()
        manifest = runs.build_inline(out, batch_bytes=chooser.choice([1024, 5000, 10**6]), **settings)
        assert runs.outputs_in(out) == expected
        assert verify_folder(FolderStore(out)).damages == []
        assert sum(taken.tokens for taken in manifest.taken) == manifest.tokens - val_file_tokens(one)
        if manifest.shards:
            runs.forget_after(out, chooser.randrange(len(manifest.shards)))
            again = runs.build_inline(out, batch_bytes=chooser.choice([1024, 7000, 10**6]), **settings)
            assert again.taken == manifest.taken
            if one.until == "all-exhausted" and one.wanted.max_tokens is None:  # else batches are cut off somewhere
                assert again.totals == manifest.totals
            assert runs.outputs_in(out) == expected


def val_file_tokens(one: Mix) -> int:
    """Which a mix does not count."""
    of_files = sum(len(tokens) for part in one.parts for tokens in part.documents(part.files[: part.val_files]))
    return of_files if one.wanted.max_tokens is None else min(of_files, one.wanted.max_tokens)


@pytest.mark.promise("a mix is that of a plain loop")
def test_mixes_with_workers_that_are_killed_are_the_reference(tmp_path: Path, tries: Tries, soak: bool) -> None:
    """With one to three workers; parent and workers are killed at any moment, and the same command resumes."""
    for seed in tries(2, 50):
        chooser, folder = random.Random(1000 + seed), tmp_path / str(seed)
        one = draw_mix(1000 + seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        settings, out = one.settings(folder), folder / "out"
        (folder / "mix.toml").write_text(toml_of(settings))
        words = runs.command(
            "build", folder / "mix.toml", "--out", out, "--engine", "tiktoken", "--workers", 1 + seed % 3,
            "--batch-bytes", chooser.choice([2000, 20_000]), "--quiet",
        )  # fmt: skip
        for _ in range(chooser.randint(0, 3)):
            run = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
            time.sleep(chooser.uniform(0.3, 2.5))
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        expected = one.expected()
        assert done.returncode == (0 if expected else 3), done.stderr
        assert runs.outputs_in(out) == expected


def test_a_mix_that_ends_at_its_first_turn_says_so(tmp_path: Path) -> None:
    """Its first part is empty: the others are not to blame."""
    write_jsonl(tmp_path / "empty.jsonl", [])
    write_jsonl(tmp_path / "full.jsonl", TEXTS[:5])
    parts = [word for name in ("empty", "full") for word in ("--part", f"input={tmp_path}/{name}.jsonl weight=1")]
    done = inline.run_command("build", *parts, "--out", tmp_path / "out", "--shard-tokens", 1000)
    assert done.returncode == 3, done.stderr
    assert "Part 1 (" in done.stderr
    assert "empty.jsonl) has no documents, so the mix ended at its first turn, without a shard." in done.stderr
    assert "--mix-until all-exhausted" in done.stderr


def toml_of(settings: dict[str, Any]) -> str:
    """The settings as a person writes them."""

    def lines(values: dict[str, Any]) -> str:
        kept = {name: value for name, value in values.items() if value not in (None, ())}
        return "".join(
            f"{name} = {json.dumps(list(value) if isinstance(value, tuple) else value)}\n"
            for name, value in kept.items()
        )

    tables = (f"[[parts]]\n{lines(part)}" for part in settings["parts"])
    return "\n".join([lines({name: value for name, value in settings.items() if name != "parts"}), *tables])
