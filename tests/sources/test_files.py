"""Inputs: folders, globs, order, and whether they are still the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.sources.files import check_same_files, files_to_json, find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.txt",
        "a.jsonl",
        "sub/c.txt.gz",
        "sub/.hidden.txt",
        ".git/x.txt",
        "notes.pdf",
        "z.parquet",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def names(*inputs: str, form: str = "auto") -> list[str]:
    return [file.name for file in find_files(inputs, form)]


def test_a_folder_is_read_in_sorted_order(folder: Path) -> None:
    """Known endings only, hidden files never."""
    assert names(str(folder)) == ["a.jsonl", "b.txt", "sub/c.txt.gz", "z.parquet"]
    assert names(str(folder), form="text") == ["a.jsonl", "b.txt", "notes.pdf", "sub/c.txt.gz", "z.parquet"]


def test_globs_are_sorted_and_recursive(folder: Path) -> None:
    """`**` reaches into folders."""
    assert names(f"{folder}/*.txt") == ["b.txt"]
    assert names(f"{folder}/**/*.txt*") == ["b.txt", "sub/c.txt.gz"]


def test_inputs_keep_the_order_they_were_given_in(folder: Path) -> None:
    """Sorted only within one --input."""
    assert names(f"{folder}/b.txt", f"{folder}/a.jsonl") == ["b.txt", "a.jsonl"]


def test_formats_and_compression_by_name(folder: Path) -> None:
    """The last endings count; --format overrules."""
    found = {file.name: (file.format, file.compression) for file in find_files((str(folder),), "auto")}
    assert found["a.jsonl"] == ("jsonl", None)
    assert found["sub/c.txt.gz"] == ("text", "gzip")
    assert find_files((str(folder / "notes.pdf"),), "auto")[0].format == "text"
    assert find_files((str(folder / "b.txt"),), "jsonl")[0].format == "jsonl"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("nowhere.txt", "no such file"), ("no/*.txt", "no file matches"), ("", "no such file|holds no")],
)
def test_missing_inputs_are_told(tmp_path: Path, text: str, sentence: str) -> None:
    """With the words that were typed."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=sentence):
        find_files((f"{tmp_path}/empty/{text}",), "auto")


def test_no_input_at_all() -> None:
    """Has its own sentence."""
    with pytest.raises(InputError, match="no input"):
        find_files((), "auto")


def test_the_standard_library_is_an_input() -> None:
    """{stdlib} stands for the running Python's own."""
    assert "os.py" in names("{stdlib}/o*.py")


def test_our_own_output_is_no_input(folder: Path) -> None:
    """A manifest in the input's folder would be read as JSON lines."""
    (folder / "manifest.json").write_text("{}")
    found = find_files((str(folder),), "auto", lambda path: path.name == "manifest.json")
    assert [file.name for file in found] == ["a.jsonl", "b.txt", "sub/c.txt.gz", "z.parquet"]


def test_unchanged_files_are_accepted_and_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    """The manifest names no path, so the folder may have moved."""
    recorded = files_to_json(find_files((str(folder / "sub"),), "auto"))
    assert "path" not in recorded[0]
    os.rename(folder / "sub", folder / "moved")
    check_same_files(find_files((str(folder / "moved"),), "auto"), recorded, trust_times=False)


@pytest.mark.promise(6)
@pytest.mark.parametrize("change", ["size", "content", "times", "count", "name"])
def test_changed_files_are_refused_by_field(folder: Path, change: str) -> None:
    """A swapped file is found even where its size is the same."""
    path = folder / "b.txt"
    status = path.stat()
    recorded = files_to_json(find_files((str(folder),), "auto"))
    field = {"size": "size_bytes", "content": "content_hash", "times": "mtime_ns", "name": "name"}.get(
        change, ""
    )
    if change == "size":
        path.write_bytes(b"longer than before")
    elif change == "content":
        path.write_bytes(b"B.txt")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "times":
        os.utime(path, ns=(0, 0))
    elif change == "count":
        path.unlink()
        field = "3 files now; it had 4"
    elif change == "name":
        path.rename(folder / "b2.txt")
    files = find_files((str(folder),), "auto")
    with pytest.raises(ChangedError, match=field):
        check_same_files(files, recorded, trust_times=False)
    if change == "times":
        check_same_files(files, recorded, trust_times=True)
