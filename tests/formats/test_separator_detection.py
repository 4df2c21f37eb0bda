"""What separates the documents of a text is found in it, or asked for before anything is encoded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import UsageError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import make_job
from fineweb_shards.storage.bucket import Bucket
from tests.support import inline, reference, runs
from tests.support.bucket_server import Door
from tests.support.inputs import write_text

LINES = [f"document {i} has a few words in one line, and nothing else follows it." for i in range(4000)]
QUESTION = (
    "no separator between documents was found: neither <|endoftext|> nor blank lines throughout the file.\n"
    "  Name it. If each line is a document: --separator line; if the whole file is one: --separator none; "
    "otherwise the string between documents: --separator TEXT"
)


def write_lines(path: Path, documents: list[str] = LINES) -> Path:
    """As `for text in documents: file.write(text + "\\n")` does."""
    return write_text(path, [*documents, ""], "\n")


def separators_of(*paths: Path) -> list[str]:
    return [file.separator for file in runs.job_of(paths[0].parent / "out", *paths).source.files]


@pytest.mark.parametrize("verb", ["plan", "build"])
@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_a_document_on_each_line_is_asked_about(tmp_path: Path, verb: str, name: str) -> None:
    """By plan and build, with exit code 2, and nothing is written; what is compressed when it is unpacked, and the same
    command with an answer builds it."""
    path = write_lines(tmp_path / "train.txt")
    if name != path.name:
        path = tmp_path / name
        path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    done = inline.run_command(verb, path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"{path}: {QUESTION}" in done.stderr
    if (verb, name) != ("build", "train.txt.gz"):
        assert not (tmp_path / "out").exists()
        return
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not runs.shards_in(tmp_path / "out")
    answered = [verb, path, "--out", tmp_path / "out", "--separator", "line", "--val-tokens", "1000"]
    assert inline.run_command(*answered).returncode == 0


@pytest.mark.full(but=["build"])
@pytest.mark.parametrize("verb", ["plan", "build"])
def test_a_pipe_is_asked_about(tmp_path: Path, verb: str) -> None:
    """By its first 64 KiB, in which nothing is found."""
    done = runs.run_command(verb, "-", "--out", tmp_path / "out", stdin="\n".join(LINES).encode())
    assert (done.returncode, QUESTION in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("separator", "documents"), [("line", LINES), ("none", ["\n".join(LINES) + "\n"])])
def test_what_the_plan_shows_is_what_the_build_makes(tmp_path: Path, separator: str, documents: list[str]) -> None:
    """The number of documents and the first ones, for either answer to the question; a document that is longer than
    many batches is one."""
    path = write_lines(tmp_path / "train.txt")
    flags = ["--separator", separator, "--batch-bytes", "16KiB", "--shard-tokens", "20k"]
    done = inline.run_command("plan", path, "--out", tmp_path / "out", *flags)
    shown = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("document ")]
    assert [text.partition(" ")[2][:20] for text in shown] == [text[:20] for text in documents[:3]]
    count = next(line for line in done.stdout.splitlines() if line.startswith("documents"))
    assert count == f"documents  about {'4k' if separator == 'line' else 1}"
    manifest = runs.build_inline(tmp_path / "out", path, separator=separator, batch_bytes=2**14, shard_tokens=20_000)
    assert manifest.documents == len(documents)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(documents), 20_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n\ntwo\n<|endoftext|>\nthree\n", "<|endoftext|>"),
        ("one\r\n\r\n<|endoftext|>\r\nthree", "<|endoftext|>"),
        ("one<|endoftext|>two", "<|endoftext|>"),
        ('one\n\nwhere `<|endoftext|>` stands\n\nand "<|endoftext|>", or <|endoftext|> itself', "blank"),
        ("one\n\ntwo", "blank"),
        ("one\r\n\r\ntwo\r\n", "blank"),
        ("one line", "blank"),
        ("\none line\n\n", "blank"),
        ("", "blank"),
        ("\n\n", "blank"),
        # In the last part of a large file only.
        ("words of one line. " * 150_000 + "\n<|endoftext|>\nend", "<|endoftext|>"),
        ("words of one line. " * 150_000, "blank"),
    ],
)
def test_what_is_found(tmp_path: Path, text: str, expected: str) -> None:
    """`<|endoftext|>` between documents, wherever it is; else blank lines. One line is one document."""
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert separators_of(path) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "two\nlines",
        "two\nlines\n\n",
        # A few blank lines among many lines, at the beginning, and in one place of many.
        "title\n\n" + "\n".join(LINES),
        "\n".join(LINES[:2000]) + "\n\n" + "\n".join(LINES[2000:]),
        "\n\n".join(LINES[:1000]) + "\n" + "\n".join(LINES * 10),
    ],
)
def test_what_is_asked_about(tmp_path: Path, text: str) -> None:
    """Lines without blank lines, or with so few that they can't separate documents."""
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match="no separator between documents was found"):
        separators_of(path)


def test_notes_in_a_folder_are_no_question(tmp_path: Path) -> None:
    """A small file without blank lines among others is a document, which is said; a large one is asked about."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Title\n\nA paragraph.\n")
    (notes / "b.md").write_text("- one\n- two\n")
    (notes / "c.md").write_text("One line.\n")
    job = runs.job_of(tmp_path / "out", notes)
    said = "1 text file without blank lines is one document: b.md (if every line is one: --separator line)"
    assert job.notes == (said,)
    manifest = runs.build_inline(tmp_path / "out", notes)
    found = np.load(tmp_path / "out" / manifest.shards[0].name).tolist()
    documents = ["# Title", "A paragraph.\n", "- one\n- two\n", "One line.\n"]
    assert found == reference.stream(documents).tolist()
    write_lines(notes / "d.md")
    with pytest.raises(UsageError, match=r"d\.md"):
        runs.job_of(tmp_path / "out2", notes)


def begun_by_an_earlier_version(out: Path, path: Path, separator: str) -> None:
    """A folder with two shards, whose manifest knows nothing of separators."""
    runs.build_inline(out, path, shard_tokens=2000, separator=separator)
    runs.forget_after(out, 2)
    data = json.loads((out / "manifest.json").read_text())
    data["parts"][0]["settings"]["separator"] = "auto"
    for file in data["parts"][0]["files"]:
        file.pop("separator", None)
    runs.write_manifest(out, data)


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("\n".join(LINES), "blank"),
        ("some words\n\nand a token, `<|endoftext|>`, in a sentence\n\n" * 400, "<|endoftext|>"),
    ],
)
def test_a_folder_of_an_earlier_version_keeps_its_separator(tmp_path: Path, text: str, separator: str) -> None:
    """What the first MiB held, else blank lines: a resume must not change the stream in the middle."""
    path, out = tmp_path / "a.txt", tmp_path / "out"
    path.write_text(text)
    begun_by_an_earlier_version(out, path, separator)
    done = inline.run_command("build", path, "--out", out, "--shard-tokens", "2000")
    assert done.returncode == 0, done.stderr
    pieces = text.split("\n\n" if separator == "blank" else separator)
    assert runs.shards_in(out) == reference.shard_files(reference.stream(pieces), 2000)


def test_a_resume_takes_the_separator_from_the_manifest(tmp_path: Path) -> None:
    """Also if another version would find another one."""
    path, out = write_text(tmp_path / "a.txt", LINES[:500], "\n\n"), tmp_path / "out"
    manifest = runs.build_inline(out, path, shard_tokens=2000)
    assert [file["separator"] for file in manifest.files] == ["blank"]
    data = json.loads((out / "manifest.json").read_text())
    data["parts"][0]["files"][0]["separator"] = "<|endoftext|>"
    runs.write_manifest(out, data)
    config = Config(input=(str(path),), out=str(out), shard_tokens=2000)
    job = make_job(config, FolderStore(out), begun=load_manifest(out))
    assert [file.separator for file in job.source.files] == ["<|endoftext|>"]


@pytest.mark.full(but=["plan"])
@pytest.mark.parametrize("verb", ["plan", "build"])
def test_a_text_in_a_bucket_is_asked_about(tmp_path: Path, bucket_url: str, door: Door, verb: str) -> None:
    """By samples of it, before anything is encoded; the rest is not fetched."""
    path = write_lines(tmp_path / "a.txt", LINES * 40)
    Bucket(bucket_url).upload(path, "a/a.txt")
    door.reads.clear()
    done = runs.run_command(verb, f"{bucket_url}/a/a.txt", "--out", tmp_path / "out")
    assert (done.returncode, QUESTION in done.stderr) == (2, True)
    assert sum(read.sent_bytes for read in door.reads) < 2**21 < path.stat().st_size
    assert not runs.shards_in(tmp_path / "out")
