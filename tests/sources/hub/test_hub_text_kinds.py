"""Which files of a dataset are read as text files, which by `datasets`, and which not at all; damaged ones, the plan,
and folders that were begun before there was a choice."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support import forked, reference, runs
from tests.support.documents import make_documents
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository
from tests.support.text_datasets import (
    DATASET,
    REPO,
    SHARD_TOKENS,
    build,
    card,
    environment,
    fetched_ranges,
    left_in_downloads,
    write_form,
)
from tests.support.text_datasets import DOCUMENTS as MANY_DOCUMENTS

DOCUMENTS = [text for text in make_documents(300, seed=7) if text]
ROWS = [{"text": text} for text in DOCUMENTS]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PLAIN = [f"document {number}" for number in range(40)]


def arrow_stream(texts: list[str]) -> bytes:
    """A file as `Dataset.save_to_disk` writes it."""
    table, sink = pa.table({"text": texts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def web_dataset(texts: list[str]) -> bytes:
    """An archive with a file for each text."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, text in enumerate(texts):
            entry = tarfile.TarInfo(f"{number:05}.text")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


# For each config that only `datasets` can read: its file, what the card says about it, and its documents.
THROUGH_DATASETS: dict[str, tuple[str, bytes, str, list[str]]] = {
    "array": ("a.json", json.dumps(ROWS).encode(), "", DOCUMENTS),
    "lines-of-array": ("a.json", json.dumps(ROWS, indent=1).encode(), "", DOCUMENTS),
    "packed-array": ("a.json.gz", gzip.compress(json.dumps(ROWS).encode()), "", DOCUMENTS),
    "field": ("a.json", json.dumps({"rows": ROWS}).encode(), "  field: rows\n", DOCUMENTS),
    "sep": ("a.csv", "\n".join(["text;n", *(f"{text};1" for text in PLAIN)]).encode(), '  sep: ";"\n', PLAIN),
    "arrow": ("a.arrow", arrow_stream(PLAIN), "", PLAIN),
    "tar": ("a.tar", web_dataset(PLAIN), "  drop: x\n", PLAIN),
    "other": ("a.jsonl.xz", lzma.compress(LINES), "", DOCUMENTS),
}
REFUSED = {
    "arrow": ("a.arrow", "row 0 can't be read"),
    "tar": ("a.tar", "can't be read"),
    "script": ("script.py", "script.py"),
}


def run_builds(hub: StandInHub, home: Path, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A build of each dataset of the hub, into a folder of its name."""
    names = [repo_id.partition("/")[2] for repo_id in hub.repositories]
    words = ["build", "--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "30k", "--workers", "1"]
    for name in names:
        out = ["--dataset", f"me/{name}", "--out", str(tmp_path / name)]
        yield name, forked.run_command(*words, *out, **environment(hub, home))


def expected_of(documents: list[str]) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(documents), SHARD_TOKENS)


@pytest.mark.full
def test_what_is_left_to_datasets(home: Path, tmp_path: Path) -> None:
    """One array in a file, a card that says how to read, an ending that we don't know."""
    repositories = [
        Repository(f"me/{name}", {"README.md": card({"default": f"{file}\n{more}".rstrip()}), file: data})
        for name, (file, data, more, _) in THROUGH_DATASETS.items()
    ]
    with StandInHub(repositories, cdn=True) as hub:
        for name, done in run_builds(hub, home, tmp_path):
            assert done.returncode == 0, (name, done.stderr)
            assert runs.shards_in(tmp_path / name) == expected_of(THROUGH_DATASETS[name][-1]), name
            manifest = json.loads((tmp_path / name / "manifest.json").read_text())
            assert [file["content_hash"] for file in manifest["parts"][0]["files"]] == [""], name


def test_what_is_refused(home: Path, tmp_path: Path) -> None:
    """Damaged Arrow files and archives, and scripts: each with its sentence and exit code 3."""
    repositories = [
        Repository(f"me/{name}", {"README.md": b"# A dataset\n", file: b"import datasets\n"})
        for name, (file, _) in REFUSED.items()
    ]
    with StandInHub(repositories, cdn=True) as hub:
        for name, done in run_builds(hub, home, tmp_path):
            assert done.returncode == 3, done.stderr
            assert REFUSED[name][1] in done.stderr
            assert "Traceback" not in done.stderr
            assert "waiting" not in done.stderr


def unpack_zstd(packed: bytes) -> bytes:
    """All the text in front of the damage: a byte at a time, so that nothing is lost with it."""
    text = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream, contextlib.suppress(OSError):
        while byte := stream.read(1):
            text += byte
    return bytes(text)


@pytest.mark.full
def test_a_file_that_is_cut_off(home: Path, tmp_path: Path) -> None:
    """As a local one: the run stops at the damage, or goes on behind it with what was whole."""
    whole = write_form(tmp_path, "jsonl.zst", MANY_DOCUMENTS)
    cut = whole[: len(whole) // 2]
    files = {"a.jsonl.zst": cut, "b.jsonl.zst": whole}
    repository = Repository(REPO, {"README.md": card({"default": '"*.zst"'}), **files})
    with StandInHub([repository], cdn=True) as hub:
        stopped = build(hub, home, tmp_path / "stop", "default")
        skipped = build(hub, home, tmp_path / "skip", "default", "--on-bad-file", "skip")
    assert stopped.returncode == 3, stopped.stderr
    assert "a.jsonl.zst: broken after" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert skipped.returncode == 0, skipped.stderr
    assert "a.jsonl.zst: broken after" in skipped.stdout + skipped.stderr
    kept = [json.loads(line)["text"] for line in unpack_zstd(cut).split(b"\n")[:-1]]
    assert 0 < len(kept) < len(MANY_DOCUMENTS)
    assert runs.shards_in(tmp_path / "skip") == expected_of(kept + MANY_DOCUMENTS)
    assert left_in_downloads(tmp_path / "skip") == []


def test_a_plan_downloads_nothing(home: Path, tmp_path: Path) -> None:
    """Of compressed files the tokens are unknown until they are read, and it says so."""
    data = write_form(tmp_path, "jsonl.zst", DOCUMENTS)
    repository = Repository(REPO, {"README.md": card({"default": '"*.zst"'}), "a.jsonl.zst": data})
    with StandInHub([repository], cdn=True) as hub:
        words = ["plan", *DATASET, "--out", tmp_path / "out"]
        done = forked.run_command(*words, **environment(hub, home))
        assert done.returncode == 0, done.stderr
        assert fetched_ranges(hub, "a.jsonl.zst") == []
    assert re.search(r"^tokens +unknown until the end$", done.stdout, re.M)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_folder_that_was_begun_with_datasets_goes_on_with_it(home: Path, tmp_path: Path) -> None:
    """Its cursors count rows, and its manifest has one file without a hash that stands for all of them."""
    out = tmp_path / "out"
    files = {"a.jsonl": LINES, "b.jsonl": LINES}
    # As the version before read it, which knew no other way: forced by an instruction that changes nothing.
    instruction = {"README.md": card({"default": '"*.jsonl"\n  chunksize: 1000000'})}
    repository = Repository(REPO, {**files, **instruction})
    with StandInHub([repository], cdn=True) as hub:
        assert build(hub, home, out, "default", "--shard-tokens", "8k").returncode == 0
        manifest = json.loads((out / "manifest.json").read_text())
        assert [file["content_hash"] for file in manifest["parts"][0]["files"]] == [""]
        runs.forget_after(out, 3)
        repository.replace_file("README.md", card({"default": '"*.jsonl"'}), new_commit=False)
        done = build(hub, tmp_path / "new_home", out, "default", "--shard-tokens", "8k")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == reference.shard_files(reference.stream(2 * DOCUMENTS), 8000)
    again = json.loads((out / "manifest.json").read_text())
    assert again["parts"][0]["files"] == manifest["parts"][0]["files"]
