"""Inputs: folders, globs, order, and whether they are still the same."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_shards.commands.main import main
from fineweb_shards.errors import BadFileError, ChangedError, InputError, UsageError
from fineweb_shards.run.plan import make_plan
from fineweb_shards.sources.files import check_same_files, files_to_json, find_files
from tests.support import reference, runs
from tests.support.inputs import write_parquet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.jsonl", "sub/c.txt.gz", "sub/.hidden.txt", ".git/x.txt", "notes.pdf", "z.parquet"):
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
    found = find_files((str(folder),), "auto", lambda path: path.endswith("/manifest.json"))
    assert [file.name for file in found] == ["a.jsonl", "b.txt", "sub/c.txt.gz", "z.parquet"]


def test_unchanged_files_are_accepted_and_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    """The manifest names no path, so the folder may have moved."""
    recorded = files_to_json(find_files((str(folder / "sub"),), "auto"))
    assert "path" not in recorded[0]
    os.rename(folder / "sub", folder / "moved")
    check_same_files(find_files((str(folder / "moved"),), "auto"), recorded, same_source=False)


def test_a_csv_file_that_was_read_as_text_is_refused(tmp_path: Path) -> None:
    """A folder that an earlier version began must not go on with other documents."""
    (tmp_path / "a.csv").write_text("text\none\n")
    files = find_files((str(tmp_path),), "auto")
    recorded = files_to_json(files)
    check_same_files(files, recorded, same_source=False)
    del recorded[0]["format"]
    with pytest.raises(ChangedError, match=r"a\.csv: an earlier version.* read it as text; now it is csv"):
        check_same_files(files, recorded, same_source=False)


@pytest.mark.promise("a changed source or setting is refused by name")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("grown", r"b\.txt: the file has grown from 5 to 1,018 bytes since .* \(modified on 20"),
        ("shrunk", r"b\.txt: the file has shrunk from 5 to 2 bytes since .* \(modified on 20"),
        ("content", r"b\.txt: the file has other content .* in the same size \(modified on 20"),
        ("times", r"b\.txt: the file was modified on 2001-.*; when these shards were begun, its date was 20"),
        ("missing", r"other files than when these shards were begun: 1 missing \(b\.txt\)"),
        ("new", r"1 new \(c\.txt\)\."),
        ("name", r"1 new \(b2\.txt\) and 1 missing \(b\.txt\)"),
        ("broken", r"b\.txt: it could be read when these shards were begun, and can't be now"),
    ],
)
def test_changed_files_are_refused(folder: Path, change: str, sentence: str) -> None:
    """With the file, what has happened to it, and what can be done; found even where the size is the same."""
    path = folder / "b.txt"
    status = path.stat()
    recorded = files_to_json(find_files((str(folder),), "auto"))
    if change in ("grown", "shrunk"):
        path.write_bytes(b"x" * (1018 if change == "grown" else 2))
    elif change == "content":
        path.write_bytes(b"B.txt")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "times":
        os.utime(path, (1e9, 1e9))
    elif change == "missing":
        path.unlink()
    elif change == "new":
        (folder / "c.txt").write_bytes(b"new")
    elif change == "name":
        path.rename(folder / "b2.txt")
    elif change == "broken":
        path.unlink()
        path.symlink_to("nowhere")
    files = find_files((str(folder),), "auto", skip_bad=True)
    with pytest.raises(ChangedError, match=sentence) as error:
        check_same_files(files, recorded, same_source=False)
    assert "--fresh" in error.value.hint
    assert ("--same-source" in error.value.hint) == (change == "times")
    if change == "times":
        check_same_files(files, recorded, same_source=True)


def test_another_order_is_refused(folder: Path) -> None:
    """The stream would be another one."""
    inputs = (f"{folder}/b.txt", f"{folder}/a.jsonl")
    recorded = files_to_json(find_files(inputs, "auto"))
    with pytest.raises(ChangedError, match=r"another order .* number 1 was b\.txt and is a\.jsonl"):
        check_same_files(find_files(inputs[::-1], "auto"), recorded, same_source=False)


def notes_of(*inputs: str, form: str = "auto") -> list[str]:
    notes: list[str] = []
    find_files(inputs, form, note=notes.append)
    return notes


def test_what_is_passed_over_is_counted(folder: Path) -> None:
    """In folders and globs alike; hidden files are nobody's business."""
    (folder / "README").write_text("x")
    (note,) = notes_of(str(folder))
    assert note.endswith("2 files skipped: unsupported file type: README, notes.pdf")
    assert notes_of(str(folder), form="text") == []
    (note,) = notes_of(f"{folder}/*")
    assert note.endswith("3 files skipped: unsupported file type: README, notes.pdf, sub")


def test_a_glob_takes_known_endings_or_the_one_it_names(folder: Path) -> None:
    """As a folder does; a file that is named is taken in any case."""
    assert names(f"{folder}/*") == ["a.jsonl", "b.txt", "z.parquet"]
    assert names(f"{folder}/*", form="text") == ["a.jsonl", "b.txt", "notes.pdf", "z.parquet"]
    assert names(f"{folder}/*.pdf") == ["notes.pdf"]
    assert names(f"{folder}/notes.pdf") == ["notes.pdf"]
    with pytest.raises(InputError, match=r"known extension: notes\.pdf") as error:
        names(f"{folder}/n*")
    assert "--format" in error.value.hint


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_input_is_refused(text: str) -> None:
    """It would be the current folder: a variable that is not set must not decide what is read."""
    with pytest.raises(UsageError, match=r"--input is empty; perhaps a shell variable"):
        find_files((text,), "auto")


@pytest.mark.parametrize("pattern", ["", "/**/*.txt*", "/**"])
def test_folders_are_read_once_however_many_links_lead_to_them(folder: Path, pattern: str) -> None:
    """Links are followed, but not one that leads back, or to a folder that is read anyway."""
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (outside / "d.txt").write_text("d")
    (folder / "loop").symlink_to(".")
    (folder / "a-link").symlink_to("sub")
    (folder / "outside").symlink_to(outside)
    expected = ["b.txt", "outside/d.txt", "sub/c.txt.gz"]
    found = find_files((f"{folder}{pattern}",), "auto")
    assert [file.name for file in found if ".txt" in file.name] == expected


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("pattern", ["", "/**/*.txt", "/*"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_broken_links_are_named_or_left_out(folder: Path, pattern: str, kind: str) -> None:
    """It may have been a file or, where a disk is not mounted, a folder: never unsaid."""
    name = "gone.txt" if kind == "file" else "gone"
    (folder / name).symlink_to("/mnt/not/there")
    with pytest.raises(BadFileError, match=rf"{name}: a link to /mnt/not/there, which does not exist") as error:
        find_files((f"{folder}{pattern}",), "auto")
    assert "--on-bad-file skip" in error.value.hint
    out = folder.parent / f"{folder.name}-out"
    (folder / "a.jsonl").write_text('{"text": "one"}')
    (folder / "z.parquet").unlink()
    (folder / "sub" / "c.txt.gz").unlink()
    manifest = runs.build_inline(out, f"{folder}{pattern}", on_bad_file="skip")
    assert manifest.totals["bad_parts"] == 1
    assert manifest.complete
    assert name in [file["name"] for file in manifest.files]
    assert runs.build_inline(out, f"{folder}{pattern}", on_bad_file="skip").complete
    assert make_plan(runs.job_of(out, f"{folder}{pattern}", on_bad_file="skip"), trial_seconds=0).extent.tokens


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("pattern", ["", "/**/*.txt*", "/s*/*"])
def test_folders_that_cannot_be_read_are_named_or_left_out(
    folder: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without permission is no empty folder."""
    forbid(monkeypatch, folder / "sub")
    with pytest.raises(BadFileError, match=r"sub: the folder can't be read: Permission denied\."):
        find_files((f"{folder}{pattern}",), "auto")
    found = find_files((f"{folder}{pattern}",), "auto", skip_bad=True)
    assert [file.name for file in found if file.problem] == ["sub"]


def test_a_file_that_cannot_be_read_is_named_or_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a damaged one."""
    forbid(monkeypatch, folder / "b.txt")
    with pytest.raises(BadFileError, match=r"b\.txt: Permission denied\.") as error:
        find_files((str(folder),), "auto")
    assert "--on-bad-file skip" in error.value.hint
    found = find_files((str(folder),), "auto", skip_bad=True)
    assert [file.name for file in found if file.problem] == ["b.txt"]


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Tests may run as root, who may read everything."""
    listdir = os.listdir

    def refuse(found: Any) -> None:
        if str(found) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied")

    def listdir_or_refuse(found: Any = ".") -> Any:
        refuse(found)
        return listdir(found)

    def open_or_refuse(found: Any, *more: Any, **options: Any) -> Any:
        refuse(found)
        return open(found, *more, **options)

    monkeypatch.setattr("fineweb_shards.sources.discovery.os.listdir", listdir_or_refuse)
    monkeypatch.setattr("fineweb_shards.sources.files.open", open_or_refuse, raising=False)


NOT_UTF8 = os.fsdecode(b"caf\xe9")


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """In input and output: built, resumed, verified, told; the manifest is UTF-8 and tells the bytes."""
    data = tmp_path / NOT_UTF8
    data.mkdir()
    write_parquet(tmp_path / "a.parquet", ["one"]).rename(data / f"{NOT_UTF8}.parquet")
    (data / f"{NOT_UTF8}.txt").write_text("two")
    (data / f"{NOT_UTF8}.jsonl").write_text('{"text": "three"}\n')
    (data / r"slash\xe9.txt").write_text("four")
    (data / f"{NOT_UTF8}.pdf").write_text("passed over")
    out = tmp_path / f"{NOT_UTF8}-out"
    (note,) = runs.job_of(out, data).notes
    assert r"caf\xe9.pdf" in note
    runs.build_inline(out, data, shard_tokens=3)
    (out / "edufineweb_train_000001.npy").unlink()
    runs.build_inline(out, data, shard_tokens=3)
    recorded = json.loads((out / "manifest.json").read_text("utf-8"))["parts"][0]["files"]
    expected = [r"caf\xe9.jsonl", r"caf\xe9.parquet", r"caf\xe9.txt", r"slash\x5cxe9.txt"]
    assert [file["name"] for file in recorded] == expected
    for words in (
        ["plan", "--input", str(data), "--out", str(out), "--shard-tokens", "3"],
        ["verify", str(out)],
        ["status", str(out)],
    ):
        assert main(words) == 0, words
    assert main(["report", str(out)]) == 0
    documents = ["three", "one", "two", "four"]
    assert runs.shards_in(out) == reference.shard_files(reference.stream(documents), 3)


@pytest.mark.parametrize("text", ["x" * 5000, "~nobody-of-that-name/x", "a.txt/below"])
def test_paths_that_cannot_be_are_told(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long, of a user who is not there, below a file: a sentence, wherever a path can stand."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(InputError, match="--input"):
        find_files((text,), "auto")
    assert main(["build", text, "--out", "out"]) == 3
    assert main(["status", text]) == 5


def test_compressed_files_with_names_that_are_no_utf8(tmp_path: Path) -> None:
    """Are read like any other."""
    path = tmp_path / f"{NOT_UTF8}.txt.zst"
    with pa.CompressedOutputStream(pa.OSFile(os.fsencode(path), "wb"), "zstd") as file:
        file.write(b"two")
    runs.build_inline(tmp_path / "out", tmp_path)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["two"]), 10**8)
