"""`export --mix`: what the plain loop gives of finished folders in any layouts, resumed or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.reading import verify
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run import shuffle
from fineweb_shards.writing import piles
from tests.exactness.test_shuffles import cut
from tests.support import layout_reference, mix_reference, reference, runs, shuffle_reference
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import EOT_FIRST, Wanted
from tests.support.promises import Tries

EOT = reference.EOT
TEXTS = [text for text in make_documents(120, seed=61) if "<|endoftext|>" not in text]
FOLDERS = {
    "first-in-front": Wanted("build-nanogpt", 3000),
    "one-file": Wanted("megatron", 5000),
    "cut": Wanted("llm.c", 2000, max_tokens=4321),
    "cut-behind": Wanted("plain", 2000, max_tokens=3210),
    "dropped": Wanted("plain", 1500, drop=True),
    "tokens": Wanted("datatrove", 2500, val_tokens=800),
    "documents": Wanted("torchtitan", 4000, val_documents=3),
    "documents-in-front": Wanted("modded-nanogpt", 1500, val_documents=4),
    "only-some": Wanted("nanogpt", 4000, val_ratio=Fraction(1, 4), val_seed=3),
    "some-in-front": Wanted("automodel", 900, val_ratio=Fraction(3, 10)),
    "cut-ratio": Wanted("olmo-core", 1000, val_ratio=Fraction(1, 5), max_tokens=5000),
    "cut-in-validation": Wanted("plain", 700, val_ratio=Fraction(9, 10), max_tokens=2500),
    "small": Wanted("plain", 10**6),
}


@dataclass(frozen=True)
class Folder:
    """A finished folder, and its documents as tokens without EOTs: all in their order, and those of each split, if the
    documents for validation were chosen as such."""

    path: Path
    documents: list[list[int]]
    val: list[list[int]]
    train: list[list[int]]


def documents_in(stream: Sequence[int], *, eot_first: bool) -> list[list[int]]:
    """The documents of a stream that begins with one; the last one may be cut off."""
    found: list[list[int]] = [] if eot_first else [[]]
    for token in stream:
        if token == EOT:
            found.append([])
        else:
            found[-1].append(token)
    return found if eot_first or found[-1] else found[:-1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    """Other documents in every layout and with every split rule."""
    root = tmp_path_factory.mktemp("folders")
    made = {}
    for number, (name, wanted) in enumerate(FOLDERS.items()):
        texts = TEXTS[8 * number : 8 * number + 24] if name != "small" else ["a", ""]
        if name == "one-file":
            texts = [*texts, "long " * 3000]
        path = write_jsonl(root / f"{name}.jsonl", texts)
        runs.build_inline(root / name, path, **wanted.settings())
        encoded, eot_first = [reference.encode(text) for text in texts], EOT_FIRST.get(wanted.layout, False)
        in_order = replace(wanted, val_tokens=0, val_ratio=None, val_documents=None)
        _, whole = layout_reference.split_stream(encoded, in_order)
        val, train = layout_reference.split_stream(encoded, wanted)
        if wanted.drop:
            whole = whole[: len(val) + len(train) // wanted.shard_tokens * wanted.shard_tokens]
        keeps = bool(wanted.val_ratio or wanted.val_documents)
        made[name] = Folder(
            root / name,
            documents_in(whole, eot_first=eot_first),
            documents_in(val, eot_first=eot_first) if keeps else [],
            documents_in(train if keeps else whole, eot_first=eot_first),
        )
    return made


@dataclass(frozen=True)
class Mix:
    """What is mixed: of each folder its name, weight and epochs."""

    parts: tuple[tuple[str, int, int], ...]
    until: str
    wanted: Wanted

    @property
    def keeps_val(self) -> bool:
        wanted = self.wanted
        return wanted.val_tokens is None and wanted.val_documents is None and wanted.val_ratio is None

    def stream(self, folders: dict[str, Folder]) -> tuple[list[tuple[int, list[int]]], int]:
        """The documents in their order with their parts, EOTs included; and how many are for validation."""

        def with_eots(documents: list[list[int]]) -> list[list[int]]:
            eot_first = EOT_FIRST.get(self.wanted.layout, False)
            return [[EOT, *one] if eot_first else [*one, EOT] for one in documents]

        chosen = [folders[name] for name, _, _ in self.parts]
        train = [with_eots(one.train if self.keeps_val else one.documents) for one in chosen]
        val = [with_eots(one.val if self.keeps_val else []) for one in chosen]
        _, weights, epochs = zip(*self.parts, strict=True)
        return list(mix_reference.mix(train, weights, self.until, epochs, val)), sum(map(len, val))

    def files(self, folders: dict[str, Folder]) -> dict[str, bytes]:
        """What the output must be."""
        stream, val = self.stream(folders)
        wanted = replace(self.wanted, val_documents=val) if val else self.wanted
        encoded = [[token for token in document if token != EOT] for _, document in stream]
        return layout_reference.files_of_tokens(encoded, wanted)

    def export(self, out: Path, folders: dict[str, Folder], **settings: Any) -> Manifest:
        paths = [folders[name].path for name, _, _ in self.parts]
        parts: list[dict[str, Any]] = [{"weight": weight, "epochs": epochs} for _, weight, epochs in self.parts]
        if len(parts) == 1:
            return runs.export_mix(out, paths, [{}], **self.wanted.settings(), **settings)
        return runs.export_mix(out, paths, parts, mix_until=self.until, **self.wanted.settings(), **settings)


def random_mix(chooser: random.Random) -> Mix:
    layout = chooser.choice([*LAYOUTS])
    names = chooser.choices([*FOLDERS], k=chooser.choice([2, 2, 3, 6]))
    weights = [chooser.choice([1, 1, 2, 3, 7, 100_000]) for _ in names]
    parts = [(name, weight, chooser.choice([1, 1, 2, 3])) for name, weight in zip(names, weights, strict=True)]
    wanted = Wanted(layout, chooser.choice([700, 3000, 10**5]), index=chooser.random() < 0.3)
    rule = chooser.choice(["kept", "kept", "kept", "tokens", "documents", "ratio"])
    if rule == "tokens":
        wanted = replace(wanted, val_tokens=chooser.choice([0, 100, 1500]))
    if rule == "documents":
        wanted = replace(wanted, val_documents=chooser.choice([1, 5]))
    if rule == "ratio":
        wanted = replace(wanted, val_ratio=Fraction(1, chooser.choice([4, 10])), val_seed=chooser.choice([0, 5]))
    if chooser.random() < 0.3:
        wanted = replace(wanted, max_tokens=chooser.choice([500, 4000, 9999]))
    return Mix(tuple(parts), chooser.choice(["first-exhausted", "all-exhausted"]), wanted)


@pytest.mark.promise("a mix is that of a plain loop")
def test_a_mix_of_folders_is_the_plain_loop(
    folders: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: Tries
) -> None:
    """Byte for byte, in blocks of any size, however documents are put together, and from any record on."""
    for seed in tries(10, 200):
        chooser = random.Random(seed)
        mixed, out = random_mix(chooser), tmp_path / str(seed)
        print(seed, mixed)
        monkeypatch.setattr(verify, "BLOCK_TOKENS", chooser.choice([7, 100, 777, 2**19]))
        monkeypatch.setattr("fineweb_shards.texts._SHORT_TOKENS", chooser.choice([0, 64, 10**9]))
        expected = mixed.files(folders)
        manifest = mixed.export(out, folders)
        assert runs.outputs_in(out) == expected
        assert verify_folder(FolderStore(out)).damages == []
        for _ in range(2):
            runs.forget_after(out, chooser.randrange(len(manifest.shards)))
            monkeypatch.setattr(verify, "BLOCK_TOKENS", chooser.choice([7, 100, 777, 2**19]))
            again = mixed.export(out, folders)
            assert runs.outputs_in(out) == expected
            assert again.totals == manifest.totals
            assert again.taken == manifest.taken


@pytest.mark.promise("a shuffle is a plain sort")
def test_a_shuffle_of_folders_is_the_plain_sort(
    folders: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: Tries
) -> None:
    """Of one folder, or of a mix, in blocks of any size, with any number of piles, and from any record on."""
    for seed in tries(10, 200):
        chooser = random.Random(seed)
        mixed, out = random_mix(chooser), tmp_path / str(seed)
        if chooser.random() < 0.5:
            mixed = replace(mixed, parts=((mixed.parts[0][0], 1, 1),))
        monkeypatch.setattr(verify, "BLOCK_TOKENS", chooser.choice([7, 100, 777, 2**19]))
        count = chooser.choice([1, 3, 50])
        monkeypatch.setattr(shuffle, "choose_count", lambda *_, count=count: count)
        monkeypatch.setattr(piles, "_TOKENS_PER_PILE", 1)
        stream, val = mixed.stream(folders)
        eot_first = EOT_FIRST.get(mixed.wanted.layout, False)
        taken = cut([document for _, document in stream], mixed.wanted.max_tokens, eot_first=eot_first)
        wanted = replace(mixed.wanted, max_tokens=None)
        wanted = replace(wanted, val_documents=min(val, len(taken))) if val else wanted
        found = shuffle_reference.shuffled(taken, seed, val)
        expected = layout_reference.files_of_tokens([[one for one in tokens if one != EOT] for tokens in found], wanted)
        manifest = mixed.export(out, folders, shuffle=seed)
        assert runs.outputs_in(out) == expected, seed
        assert verify_folder(FolderStore(out)).damages == []
        if not manifest.shards:  # the limit has cut the first document, and EOTs come last
            continue
        runs.forget_after(out, chooser.randrange(len(manifest.shards)))
        again = mixed.export(out, folders, shuffle=seed)
        assert runs.outputs_in(out) == expected, seed
        assert again.totals == manifest.totals
