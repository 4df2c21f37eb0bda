"""kill -9 before and after every file operation of both passes of a shuffle."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.support import layout_reference, reference, runs, shuffle_reference
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

DOCUMENTS = [text for text in make_documents(36, seed=95) if "<|endoftext|>" not in text]
SHUFFLED = shuffle_reference.shuffled(DOCUMENTS, 9)


def crash_everywhere(wanted: Wanted, out: Path, *, soak: bool, **job: Any) -> int:
    """How often it was killed and resumed."""
    settings = {**wanted.settings(), "shuffle": 9}
    return runs.crash_everywhere(
        {
            "out": str(out),
            "settings": settings,
            "resumed": settings,
            "writes": 1 if soak else 40,
            "step": 1 if soak else 6,
            "piles": 3,
            "expected": reference.digests(layout_reference.files(SHUFFLED, wanted)),
            **job,
        }
    )


@pytest.mark.promise("kill -9 loses only the unfinished shard")
@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("build-nanogpt", 6000),
        pytest.param(Wanted("megatron", 6000, val_documents=9), marks=pytest.mark.soak),
        pytest.param(Wanted("plain", 6000, val_ratio=Fraction(1, 4), drop=True), marks=pytest.mark.soak),
    ],
    ids=lambda wanted: wanted.layout,
)
def test_a_shuffled_build_is_killed_at_every_file_operation(tmp_path: Path, wanted: Wanted, soak: bool) -> None:
    """The next run has the bytes of a plain sort, whichever pass it was killed in."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    batches = {"settings": {**wanted.settings(), "shuffle": 9, "batch_bytes": 2048}}
    assert crash_everywhere(wanted, tmp_path / "out", soak=soak, kind="build", input=str(path), **batches) > 20


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_shuffled_export_is_killed_at_every_file_operation(tmp_path: Path, soak: bool) -> None:
    wanted = Wanted("build-nanogpt", 6000)
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    runs.build_inline(tmp_path / "built", path, shard_tokens=7000, layout="megatron")
    assert crash_everywhere(wanted, tmp_path / "out", soak=soak, kind="mix", input=[str(tmp_path / "built")]) > 20


@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_shuffle_with_files_for_validation_and_scratch_is_killed(tmp_path: Path, soak: bool) -> None:
    """The files for validation have a pile of their own, and all piles are outside the output."""
    val, train = DOCUMENTS[:7], DOCUMENTS[7:]
    path, val_path = write_jsonl(tmp_path / "b.jsonl", train), write_jsonl(tmp_path / "a.jsonl", val)
    wanted = Wanted("build-nanogpt", 6000, val_documents=len(val))
    expected = layout_reference.files(shuffle_reference.shuffled(DOCUMENTS, 9, len(val)), wanted)
    settings = {
        "shuffle": 9, "shard_tokens": 6000, "val_input": [str(val_path)], "scratch": str(tmp_path / "scratch"),
    }  # fmt: skip
    tries = crash_everywhere(
        wanted, tmp_path / "out", soak=soak, kind="build", input=str(path), expected=reference.digests(expected),
        settings={**settings, "batch_bytes": 2048}, resumed=settings, step=1 if soak else 20,
    )  # fmt: skip
    assert tries > 4
