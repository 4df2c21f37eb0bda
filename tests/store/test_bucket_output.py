"""A build into a bucket: the same files as in a folder, whole at every moment, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import layout_reference
import pytest
import runs
from bucket_server import Door, use_small_parts
from bucket_view import BucketView, Watcher, check_finished
from documents import make_documents
from inputs import write_jsonl
from layout_reference import Wanted

DOCUMENTS = make_documents(36, seed=95)
LAYOUTS = [
    Wanted("build-nanogpt", 6000, val_tokens=3000),
    Wanted("build-nanogpt", 6000, index=True),
    Wanted("nanogpt", 6000, val_ratio=Fraction(1, 4)),
    Wanted("megatron", 6000, val_tokens=7000),
    Wanted("modded-nanogpt", 6000, val_documents=9),
    Wanted("llm.c", 6000, val_ratio=Fraction(2, 5)),
    Wanted("plain", 6000, val_ratio=Fraction(1, 4), drop=True),
    Wanted("datatrove", 6000, val_tokens=3000, index=True),
    Wanted("olmo-core", 6000, val_ratio=Fraction(1, 4), index=True),
    Wanted("torchtitan", 6000, index=True),
    Wanted("automodel", 6000),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def out(bucket_url: str) -> str:
    return f"{bucket_url}/folder"


@pytest.fixture
def view(bucket_environment: str, out: str) -> BucketView:
    return BucketView(bucket_environment, out)


@pytest.fixture
def build(out: str, source: Path, scratch: Path) -> Callable[..., object]:
    def call(wanted: Wanted, scratch: Path = scratch, **settings: object) -> object:
        return runs.build_inline(
            out,
            source,
            **{
                "engine": "tiktoken",
                "max_outage": 20,
                **wanted.settings(),
                "scratch": str(scratch),
                **settings,
            },
        )

    return call


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of more than 4 KiB are uploaded in parts."""
    use_small_parts(monkeypatch)


@pytest.mark.promise(35)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("wanted", LAYOUTS, ids=lambda wanted: wanted.layout)
def test_every_layout_has_the_bytes_of_the_reference(
    build: Callable[..., object], view: BucketView, door: Door, scratch: Path, wanted: Wanted
) -> None:
    """And no object is ever visible under a final name with other bytes."""
    expected = layout_reference.files(DOCUMENTS, wanted)
    watcher = Watcher(view, door, expected)
    build(wanted)
    check_finished(view, scratch, expected)
    assert watcher.torn == []
    assert watcher.changes >= len(expected)
    assert json.loads(view.read("manifest.json"))["complete"]
