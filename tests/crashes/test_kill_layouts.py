"""kill -9 before and after every fsync, rename, write, truncation and removal, in every kind of layout."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tests.support import layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(36, seed=95)


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(Wanted("nanogpt", 6000, val_ratio=Fraction(1, 4)), marks=pytest.mark.soak),
        Wanted("megatron", 6000, val_tokens=7000),
        pytest.param(Wanted("modded-nanogpt", 6000, val_documents=9), marks=pytest.mark.soak),
        pytest.param(Wanted("megatron", 6000, val_documents=9), marks=pytest.mark.soak),
        pytest.param(Wanted("llm.c", 6000, val_ratio=Fraction(2, 5)), marks=pytest.mark.soak),
        pytest.param(Wanted("plain", 6000, val_ratio=Fraction(1, 4), drop=True), marks=pytest.mark.soak),
        Wanted("build-nanogpt", 6000, val_tokens=3000),
        pytest.param(Wanted("datatrove", 6000, val_tokens=3000, index=True), marks=pytest.mark.soak),
        pytest.param(Wanted("olmo-core", 6000, val_ratio=Fraction(1, 4), index=True), marks=pytest.mark.soak),
        pytest.param(Wanted("torchtitan", 6000, index=True), marks=pytest.mark.soak),
        pytest.param(Wanted("automodel", 6000), marks=pytest.mark.soak),
    ],
    ids=lambda wanted: wanted.layout,
)
def test_a_kill_at_every_file_operation(tmp_path: Path, wanted: Wanted, soak: bool) -> None:
    """Nothing the manifest names is lost, no reader sees half a file, and the next run has the same bytes."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    tries = runs.crash_everywhere(
        {
            "kind": "build",
            "input": str(path),
            "out": str(tmp_path / "out"),
            "settings": {**wanted.settings(), "batch_bytes": 2048},
            "resumed": {**wanted.settings(), "batch_bytes": 5000},
            "writes": 1 if soak else 40,
            "step": 1 if soak else 2,
            "expected": reference.digests(layout_reference.files(DOCUMENTS, wanted)),
        }
    )
    assert tries > 20
