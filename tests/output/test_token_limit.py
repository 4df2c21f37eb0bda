"""Another --max-tokens for a folder that is there: grown, the bytes are those of a run that never stopped."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest

from fineweb_shards.errors import ChangedError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.reading.verify import verify_folder
from tests.support import layout_reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(60, seed=29)
ENCODED = [layout_reference.reference.encode(text) for text in DOCUMENTS]
TOTAL = sum(map(len, ENCODED)) + len(DOCUMENTS)
# Inside a shard, at its end, one token behind it; then further, and to the end of the input.
GROWTH = (1500, 2000, 2001, 4700, TOTAL - 1, None)
WANTED = [
    *(Wanted(layout, 2000) for layout in LAYOUTS),
    *(Wanted(layout, 1000, val_tokens=1700) for layout in ("llm.c", "nanogpt", "megatron")),
    *(Wanted(layout, 500, val_ratio=Fraction(3, 10), val_seed=4) for layout in LAYOUTS),
    *(Wanted(layout, 1000, val_documents=20) for layout in LAYOUTS),
    *(Wanted(layout, 1000, drop=True) for layout in ("build-nanogpt", "plain")),
    Wanted("llm.c", 1000, val_ratio=Fraction(1, 10), drop=True),
]


@pytest.mark.full(but=["*megatron*"])
@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_grown_folder_is_that_of_an_uninterrupted_run(tmp_path: Path, wanted: Wanted) -> None:
    """Limit after limit, in every layout: every file equals the reference's, every record that of a fresh build, and
    the folder verifies."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    out = tmp_path / "out"
    for limit in GROWTH:
        now = dataclasses.replace(wanted, max_tokens=limit)
        grown = runs.build_inline(out, path, batch_bytes=3000, **now.settings())
        assert runs.outputs_in(out) == layout_reference.files_of_tokens(ENCODED, now), limit
        assert verify_folder(FolderStore(out)).damages == []
    fresh = runs.build_inline(tmp_path / "fresh", path, batch_bytes=3000, **wanted.settings())
    assert grown.shards == fresh.shards
    assert grown.totals == fresh.totals
    assert grown.settings == fresh.settings


@pytest.mark.parametrize("layout", ["build-nanogpt", "megatron", "nanogpt"])
def test_growing_can_be_interrupted(tmp_path: Path, layout: str) -> None:
    """A crash after any record of the grown run: the same bytes."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    before, after = Wanted(layout, 700, max_tokens=2500), Wanted(layout, 700, max_tokens=6100)
    out = tmp_path / "out"
    runs.build_inline(out, path, **before.settings())
    records = len(runs.build_inline(out, path, **after.settings()).shards)
    for kept in range(0, records, 3):
        runs.forget_after(out, kept)
        runs.build_inline(out, path, **after.settings())
        assert runs.outputs_in(out) == layout_reference.files_of_tokens(ENCODED, after)


def test_a_stream_can_not_be_made_shorter(tmp_path: Path) -> None:
    """Refused with both figures, and nothing is touched, even where a file is lost."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=1000, max_tokens=4500)
    sentence = r"--max-tokens 3,000: the folder already has 4,500 tokens"
    with pytest.raises(ChangedError, match=sentence):
        runs.build_inline(out, path, shard_tokens=1000, max_tokens=3000)
    (out / "edufineweb_train_000001.npy").unlink()
    with pytest.raises(ChangedError, match=sentence):
        runs.build_inline(out, path, shard_tokens=1000, max_tokens=3000)


def test_an_unfinished_run_may_end_earlier(tmp_path: Path) -> None:
    """At a limit that is still ahead."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=1000)
    runs.forget_after(out, 2)
    wanted = Wanted("build-nanogpt", 1000, max_tokens=3500)
    with pytest.raises(ChangedError, match=r"edufineweb_train_000002\.npy of this unfinished folder"):
        runs.build_inline(out, path, **wanted.settings())  # a loader would read it
    for stray in sorted(out.glob("*_train_*.npy"))[1:]:
        stray.unlink()
    runs.build_inline(out, path, **wanted.settings())
    assert runs.outputs_in(out) == layout_reference.files_of_tokens(ENCODED, wanted)


def test_a_finished_input_needs_nothing(tmp_path: Path) -> None:
    """Where the input ended before the limit, another limit changes nothing."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=1000, max_tokens=TOTAL + 10)
    before = (out / "manifest.json").read_bytes()
    assert runs.build_inline(out, path, shard_tokens=1000, max_tokens=TOTAL + 99).complete
    assert runs.build_inline(out, path, shard_tokens=1000).complete
    assert (out / "manifest.json").read_bytes() == before
    assert load_manifest(out) is not None
