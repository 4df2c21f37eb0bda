"""`export` from any layout to any other is a build in that layout, byte for byte."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import ChangedError, DamageError, InputError, Interrupted, UsageError
from fineweb_shards.executors.base import InProcessPlane
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading import verify
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.writing.placement import Output
from tests.support import layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import AtOncePlane
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

# Documents longer than a shard, empty ones (two EOTs in a row), at both ends, too.
DOCUMENTS = ["", *make_documents(40, seed=97), "long " * 4000, "", ""]
SOURCES = {
    **{layout: Wanted(layout, 3000) for layout in LAYOUTS},
    "llm.c": Wanted("llm.c", 2500, val_ratio=Fraction(3, 10), val_seed=2),
    "modded-nanogpt": Wanted("modded-nanogpt", 7000, val_tokens=100),
    "nanogpt": Wanted("nanogpt", 4000, val_ratio=Fraction(1, 5)),
    "megatron": Wanted("megatron", 5000, val_ratio=Fraction(7, 10)),
}


def export_settings(wanted: Wanted) -> dict[str, object]:
    return {key: value for key, value in wanted.settings().items() if key != "max_tokens"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same documents, built in every layout."""
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    for layout, wanted in SOURCES.items():
        runs.build_inline(folder / layout, path, **wanted.settings())
    return {layout: folder / layout for layout in SOURCES}


@pytest.mark.parametrize(("source", "target"), [*itertools.product(LAYOUTS, LAYOUTS)])
def test_an_export_is_a_build(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    """Every pair, read in small blocks, with another shard size or split; some also resumed half-way."""
    monkeypatch.setattr(verify, "BLOCK_TOKENS", 777)
    pair = [*LAYOUTS].index(source), [*LAYOUTS].index(target)
    wanted = Wanted(target, 4000, index=True)
    if (source, target) in (("llm.c", "nanogpt"), ("plain", "llm.c"), ("megatron", "build-nanogpt")):
        wanted = Wanted(target, 3000, val_documents=13)
    elif pair[0] % 2 == pair[1] % 2:
        wanted = Wanted(target, 5000, val_ratio=Fraction(1, 4), val_seed=9)
    expected = layout_reference.files(DOCUMENTS, wanted)
    out = tmp_path / "out"
    manifest = runs.export(made[source], out, **export_settings(wanted))
    assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []
    if sum(pair) % 3:
        return
    runs.forget_after(out, len(manifest.shards) // 2)
    assert runs.export(made[source], out, **export_settings(wanted)).complete
    assert runs.outputs_in(out) == expected


@pytest.mark.parametrize("limit", [9000, 9001])
def test_a_stream_cut_by_max_tokens(tmp_path: Path, limit: int) -> None:
    """To EOT in front it is the build with the same limit. To EOT behind, the one token that the shift would bring in
    is not known: it is the build with a limit one lower. And back it is whole again."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    first = Wanted("llm.c", 3000, max_tokens=limit)
    last = Wanted("plain", 3000, max_tokens=limit)
    shorter = Wanted("plain", 3000, max_tokens=limit - 1)
    runs.build_inline(tmp_path / "first", path, **first.settings())
    runs.build_inline(tmp_path / "last", path, **last.settings())
    runs.export(tmp_path / "last", tmp_path / "a", **export_settings(first))
    assert runs.outputs_in(tmp_path / "a") == layout_reference.files(DOCUMENTS, first)
    runs.export(tmp_path / "first", tmp_path / "b", **export_settings(last))
    assert runs.outputs_in(tmp_path / "b") == layout_reference.files(DOCUMENTS, shorter)
    runs.export(tmp_path / "b", tmp_path / "c", **export_settings(first))
    assert runs.outputs_in(tmp_path / "c") == layout_reference.files(DOCUMENTS, first)


@pytest.mark.parametrize("source", ["build-nanogpt", "plain"])
def test_a_stream_that_ends_on_a_border_or_is_dropped(tmp_path: Path, source: str) -> None:
    """No empty file, no extra one; a dropped last shard stays dropped."""
    total = len(reference.stream(DOCUMENTS))
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    runs.build_inline(tmp_path / "whole", path, **Wanted(source, total).settings())
    for target in ("llm.c", "plain"):
        exact = Wanted(target, total, val_tokens=0)
        runs.export(tmp_path / "whole", tmp_path / target, **export_settings(exact))
        assert runs.outputs_in(tmp_path / target) == layout_reference.files(DOCUMENTS, exact)
    dropped = Wanted(source, 3000, drop=True)
    runs.build_inline(tmp_path / "dropped", path, **dropped.settings())
    same_side = Wanted("llm.c" if source == "build-nanogpt" else "plain", 3000, drop=True)
    runs.export(tmp_path / "dropped", tmp_path / "same", **export_settings(same_side))
    assert runs.outputs_in(tmp_path / "same") == layout_reference.files(DOCUMENTS, same_side)
    if source == "plain":
        first = Wanted("llm.c", 3000, drop=True)
        runs.export(tmp_path / "dropped", tmp_path / "first", **export_settings(first))
        assert runs.outputs_in(tmp_path / "first") == layout_reference.files(DOCUMENTS, first)


def test_an_empty_stream(tmp_path: Path) -> None:
    """No documents: no files, and that is complete."""
    path = write_jsonl(tmp_path / "a.jsonl", [None, None])
    manifest = runs.build_inline(tmp_path / "made", path)
    assert manifest.totals["skipped_documents"] == 2
    manifest = runs.export(tmp_path / "made", tmp_path / "out", layout="plain")
    assert manifest.complete
    assert manifest.totals["skipped_documents"] == 2
    assert runs.outputs_in(tmp_path / "out") == {}


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_kill_at_every_file_operation_of_an_export(made: dict[str, Path], tmp_path: Path, soak: bool) -> None:
    """It resumes like a build."""
    wanted = Wanted("nanogpt", 6000, val_ratio=Fraction(1, 4))
    tries = runs.crash_everywhere(
        {
            "kind": "export",
            "input": str(made["build-nanogpt"]),
            "out": str(tmp_path / "out"),
            "settings": export_settings(wanted),
            "resumed": export_settings(wanted),
            "step": 1 if soak else 2,
            "expected": reference.digests(layout_reference.files(DOCUMENTS, wanted)),
        }
    )
    assert tries > 20


def test_the_export_knows_what_the_source_was(made: dict[str, Path], tmp_path: Path) -> None:
    """Files, commit, counts and totals of the documents come along."""
    source = json.loads((made["llm.c"] / "manifest.json").read_text())
    runs.export(made["llm.c"], tmp_path / "out", layout="nanogpt")
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert found["parts"] == source["parts"]
    assert found["totals"] == {**source["totals"], "shards": 1}


def test_what_can_not_be_exported_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    """No shards, unfinished ones, damaged ones, into itself, on top of another export."""
    with pytest.raises(InputError, match=r"no manifest\.json"):
        runs.export(tmp_path, tmp_path / "out", layout="plain")
    with pytest.raises(UsageError, match="export from"):
        runs.export(made["plain"], made["plain"], layout="plain")
    runs.export(made["plain"], tmp_path / "out", layout="llm.c")
    with pytest.raises(ChangedError, match="shards to export"):
        runs.export(made["build-nanogpt"], tmp_path / "out", layout="llm.c")
    copy = tmp_path / "out"
    path = copy / "edu_fineweb_val_000000.bin"
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match="SHA-256"):
        runs.export(copy, tmp_path / "bad", layout="plain")
    assert runs.outputs_in(tmp_path / "bad") == {}
    runs.forget_after(copy, 1)
    with pytest.raises(InputError, match="not finished"):
        runs.export(copy, tmp_path / "bad", layout="plain")


def test_many_shards_at_once_are_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes just after they were, and what is finished is recorded afterwards."""
    documents = ["many words in a row " * 20] * 100
    runs.build_inline(tmp_path / "built", write_jsonl(tmp_path / "a.jsonl", documents))
    record = Output._record

    def record_and_stop(self: Output, checkpoints: Any) -> None:
        record(self, checkpoints)
        if len(checkpoints) > 20:
            raise Interrupted("Interrupted.", 130)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessPlane, "_start", AtOncePlane._start)
        patch.setattr(Output, "_record", record_and_stop)
        with pytest.raises(Interrupted):
            runs.export(tmp_path / "built", tmp_path / "out", layout="build-nanogpt", shard_tokens=100)
    runs.export(tmp_path / "built", tmp_path / "out", layout="build-nanogpt", shard_tokens=100)
    assert runs.outputs_in(tmp_path / "out") == reference.shard_files(reference.stream(documents), 100)
