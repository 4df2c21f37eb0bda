"""`--val-input`: the documents of some files are for validation, those of all others for training."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import BadFileError, ChangedError, InputError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.report.contents import report_path
from fineweb_shards.sources.hub_files import ListedFile, Listing
from tests.support import inline, layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted

DOCUMENTS = [text for text in make_documents(90, seed=43) if text.strip() and "<|endoftext|>" not in text]
FIRST, SECOND, THIRD, FOURTH = (DOCUMENTS[start : start + 15] for start in range(0, 60, 15))
VALIDATION = [*THIRD, *FIRST]  # as the tests name the files
TRAINING = [*SECOND, *FOURTH]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files, each of another kind."""
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "1.jsonl", FIRST)
    write_parquet(folder / "2.parquet", SECOND, 4)
    write_text(folder / "3.txt", THIRD)
    packed = write_jsonl(folder / "packed", FOURTH)
    write_gzip(folder / "4.jsonl.gz", packed.read_bytes())
    packed.unlink()
    return folder


def val_input(data: Path) -> tuple[str, ...]:
    """Given in another order than that of the folder, which is all of --input."""
    return str(data / "3.txt"), str(data / "1.json*")


def expected_files(wanted: Wanted) -> dict[str, bytes]:
    by_number = dataclasses.replace(wanted, val_documents=len(VALIDATION))
    return layout_reference.files([*VALIDATION, *TRAINING], by_number)


@pytest.mark.full(but=["700-*"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shard_tokens", [700, 10**6])
def test_a_build_is_the_reference_resumed_or_not(tmp_path: Path, data: Path, layout: str, shard_tokens: int) -> None:
    """A file that --input names as well is for validation only; training begins in a shard of its own; the same from
    any checkpoint."""
    wanted, out = Wanted(layout, shard_tokens), tmp_path / "out"
    settings = {**wanted.settings(), "val_input": val_input(data)}
    expected = expected_files(wanted)
    manifest = runs.build_inline(out, data, batch_bytes=2000, **settings)
    assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []
    for records in range(0, len(manifest.shards), max(1, len(manifest.shards) // 5)):
        runs.forget_after(out, records)
        runs.build_inline(out, data, batch_bytes=1024 + 99 * records, **settings)
        assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []


@pytest.mark.full
@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_command_with_real_workers(tmp_path: Path, data: Path, workers: str) -> None:
    """The same bytes, and the plan says which files are for validation."""
    words = [word for path in val_input(data) for word in ("--val-input", path)]
    done = runs.run_command(
        "build", data, *words, "--out", tmp_path / "out", "--shard-tokens", "900", "--batch-bytes", "1k",
        "--workers", workers,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(tmp_path / "out") == expected_files(Wanted("build-nanogpt", 900))
    said = " ".join(done.stderr.split())
    assert "the documents of 2 files, which come first: 3.txt, 1.jsonl" in said
    assert "2 files of --input for validation only: 1.jsonl, 3.txt" in said


@pytest.mark.soak
def test_a_kill_at_every_file_operation(tmp_path: Path) -> None:
    """Nothing is lost, and the next run has the same bytes."""
    wanted = Wanted("llm.c", 1000, val_documents=3)
    write_jsonl(tmp_path / "val.jsonl", FIRST[:3])
    settings = {**wanted.settings(), "val_documents": None, "val_input": [str(tmp_path / "val.jsonl")]}
    tries = runs.crash_everywhere(
        {
            "kind": "build",
            "input": str(write_jsonl(tmp_path / "train.jsonl", SECOND[:4])),
            "out": str(tmp_path / "out"),
            "settings": {**settings, "batch_bytes": 1024},
            "resumed": {**settings, "batch_bytes": 5000},
            "expected": reference.digests(layout_reference.files([*FIRST[:3], *SECOND[:4]], wanted)),
        }
    )
    assert tries > 20


@pytest.mark.parametrize("layout", ["build-nanogpt", "plain", "megatron"])
def test_max_tokens_counts_both_splits(tmp_path: Path, data: Path, layout: str) -> None:
    """It may end in validation, where it ends, or in training; a folder grows from each to the next."""
    encoded = [reference.encode(text) for text in VALIDATION]
    boundary = sum(map(len, encoded)) + len(encoded)
    for limit in (boundary - 100, boundary, boundary + 1, boundary + 1500, None):
        wanted = Wanted(layout, 800, max_tokens=limit)
        settings = {**wanted.settings(), "val_input": val_input(data)}
        runs.build_inline(tmp_path / "out", data, **settings)
        assert runs.outputs_in(tmp_path / "out") == expected_files(wanted), limit
        assert verify_folder(FolderStore(tmp_path / "out")).damages == []


@pytest.mark.parametrize(("source", "target"), [("llm.c", "megatron"), ("nanogpt", "build-nanogpt")])
def test_an_export_keeps_the_split_or_changes_it(tmp_path: Path, data: Path, source: str, target: str) -> None:
    """Without a flag the same documents are for validation, again and again; with one, others are."""
    wanted = Wanted(source, 900)
    runs.build_inline(tmp_path / "made", data, **wanted.settings(), val_input=val_input(data))
    runs.export(tmp_path / "made", tmp_path / "kept", layout=target, shard_tokens=700)
    assert runs.outputs_in(tmp_path / "kept") == expected_files(Wanted(target, 700))
    runs.forget_after(tmp_path / "kept", 2)
    runs.export(tmp_path / "made", tmp_path / "kept", layout=target, shard_tokens=700)
    assert runs.outputs_in(tmp_path / "kept") == expected_files(Wanted(target, 700))
    runs.export(tmp_path / "kept", tmp_path / "back", layout=source, shard_tokens=900)
    assert runs.outputs_in(tmp_path / "back") == expected_files(wanted)
    other = Wanted(target, 700, val_tokens=1234)
    runs.export(tmp_path / "made", tmp_path / "other", layout=target, shard_tokens=700, val_tokens=1234)
    found = runs.outputs_in(tmp_path / "other")
    assert found == layout_reference.files([*VALIDATION, *TRAINING], other)


@pytest.mark.parametrize("source", ["llm.c", "plain"])
def test_an_export_of_a_stream_that_ends_in_validation(tmp_path: Path, data: Path, source: str) -> None:
    """Nothing of it becomes training, not even the document that was cut."""
    wanted = Wanted(source, 700, max_tokens=1500)
    runs.build_inline(tmp_path / "made", data, **wanted.settings(), val_input=val_input(data))
    runs.export(tmp_path / "made", tmp_path / "out", layout=source, shard_tokens=700)
    assert runs.outputs_in(tmp_path / "out") == expected_files(wanted)


def test_the_folder_says_what_is_for_validation(tmp_path: Path, data: Path) -> None:
    """In the plan, the status, the report and the manifest."""
    out = tmp_path / "out"
    words = ("--val-input", data / "1.jsonl", "--out", out, "--shard-tokens", "1000")
    planned = inline.run_command("plan", data, *words).stdout
    assert "validation the documents of 1 file, which come first: 1.jsonl" in planned
    done = inline.run_command("build", data, *words)
    assert done.returncode == 0, done.stderr
    val_tokens = sum(map(len, map(reference.encode, FIRST))) + len(FIRST)
    assert f"{val_tokens:,} of them for validation" in done.stdout
    assert "validation the documents of 1 file" in inline.run_command("status", out).stdout
    inline.run_command("report", out)
    assert "the documents of 1 file" in report_path(out).read_text()
    files = json.loads((out / "manifest.json").read_text())["parts"][0]["files"]
    assert [file.get("for_validation") for file in files] == [True, None, None, None]


def test_another_choice_of_files_is_refused_by_name(tmp_path: Path, data: Path) -> None:
    """Other files, none, or a file that was for training; and with the same files, --val-documents."""
    out, first = tmp_path / "out", (str(data / "1.jsonl"),)
    runs.build_inline(out, data, shard_tokens=1000, val_input=first)
    runs.forget_after(out, 2)
    for given, said in (
        (
            (str(data / "2.parquet"),),
            r"2 new \(2\.parquet of --val-input, 1\.jsonl\) and 2 missing \(1\.jsonl of --val-input, 2\.parquet\)",
        ),
        ((*first, str(data / "2.parquet")), r"1 new \(2\.parquet of --val-input\) and 1 missing \(2\.parquet\)"),
        ((), r"1 new \(1\.jsonl\) and 1 missing \(1\.jsonl of --val-input\)"),
    ):
        with pytest.raises(ChangedError, match=rf"other files than when these shards were begun: {said}"):
            runs.build_inline(out, data, shard_tokens=1000, val_input=given)
    with pytest.raises(ChangedError, match=r"--val-documents was not set when .* and is 15 now"):
        runs.build_inline(out, data, shard_tokens=1000, val_documents=15)
    other = tmp_path / "other"
    runs.build_inline(other, data, shard_tokens=1000)
    runs.forget_after(other, 2)
    with pytest.raises(ChangedError, match=r"1 new \(1\.jsonl of --val-input\) and 1 missing \(1\.jsonl\)"):
        runs.build_inline(other, data, shard_tokens=1000, val_input=first)


def test_changed_files_are_refused_like_others(tmp_path: Path) -> None:
    """Grown, or with another date."""
    val, train = write_jsonl(tmp_path / "v.jsonl", FIRST), write_jsonl(tmp_path / "t.jsonl", SECOND)
    runs.build_inline(tmp_path / "out", train, shard_tokens=500, val_input=(str(val),))
    runs.forget_after(tmp_path / "out", 1)
    os.utime(val, (1, 1))
    with pytest.raises(ChangedError, match=r"v\.jsonl: the file was modified"):
        runs.build_inline(tmp_path / "out", train, shard_tokens=500, val_input=(str(val),))
    write_jsonl(val, [*FIRST, "more"])
    with pytest.raises(ChangedError, match=r"v\.jsonl: the file has grown"):
        runs.build_inline(tmp_path / "out", train, shard_tokens=500, val_input=(str(val),))


def test_what_can_not_be_read_names_the_flag(tmp_path: Path, data: Path) -> None:
    """A file that is missing, a glob that matches nothing, an empty name, a damaged file."""
    for given, said in (
        (str(tmp_path / "gone.jsonl"), r"--val-input .*gone\.jsonl: no such file or folder"),
        (str(tmp_path / "*.jsonl"), r"--val-input .*: no file matches"),
    ):
        with pytest.raises(InputError, match=said):
            runs.job_of(tmp_path / "out", data, val_input=(given,))
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadFileError, match=r"bad\.parquet"):
        runs.build_inline(tmp_path / "out", data, val_input=(str(tmp_path / "bad.parquet"),))
    done = inline.run_command("build", data, "--val-input", data / "1.jsonl", "--val-ratio", "0.1", "--out", "o")
    assert done.returncode == 2
    assert "--val-input and --val-ratio exclude each other" in done.stderr


def test_a_split_without_a_document_is_told(tmp_path: Path, data: Path) -> None:
    """All files for validation, or a file without a document; the shards are what was asked for."""
    done = inline.run_command("build", data, "--val-input", data, "--out", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    assert "go to validation, which takes the documents of 4 files" in " ".join(done.stdout.split())
    (tmp_path / "empty.jsonl").write_bytes(b"")
    words = ("--val-input", tmp_path / "empty.jsonl", "--shard-tokens", "900", "--out", tmp_path / "none")
    done = inline.run_command("build", data / "2.parquet", *words)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "There is nothing for validation, which takes the documents of " in said
    assert "Rerun it with --fresh and other files in --val-input." in said
    wanted = Wanted("build-nanogpt", 900, val_documents=0)
    assert runs.outputs_in(tmp_path / "none") == layout_reference.files(SECOND, wanted)


def test_filters_come_first(tmp_path: Path, data: Path) -> None:
    """--min-tokens leaves documents out of both splits; --val-documents counts those that are kept."""
    kept = [text for text in [*VALIDATION, *TRAINING] if len(reference.encode(text)) >= 150]
    in_files = [text for text in VALIDATION if len(reference.encode(text)) >= 150]
    assert 0 < len(in_files) < len(VALIDATION)
    expected = layout_reference.files(kept, Wanted("llm.c", 800, val_documents=len(in_files)))
    settings = {"layout": "llm.c", "shard_tokens": 800, "min_tokens": 150, "batch_bytes": 1500}
    manifest = runs.build_inline(tmp_path / "files", data, **settings, val_input=val_input(data))
    assert runs.outputs_in(tmp_path / "files") == expected
    runs.forget_after(tmp_path / "files", len(manifest.shards) // 2)
    runs.build_inline(tmp_path / "files", data, **settings, val_input=val_input(data))
    assert runs.outputs_in(tmp_path / "files") == expected
    inputs = [data / name for name in ("3.txt", "1.jsonl", "2.parquet", "4.jsonl.gz")]
    runs.build_inline(tmp_path / "count", *inputs, **settings, val_documents=len(in_files))
    assert runs.outputs_in(tmp_path / "count") == expected


def test_files_of_a_dataset_are_named_by_name_or_pattern() -> None:
    """They come first, in the order of the listing; a name that fits nothing is told with what there is."""
    names = ["data/a.parquet", "data/b.parquet", "more/part_400.jsonl"]
    listing = Listing("me/it", "c0ffee", tuple(ListedFile(name, 1, "ab") for name in names))
    for patterns in (("part_400.jsonl",), ("more/*",), ("*_400.*", "part_400.jsonl")):
        found = listing.with_validation(patterns)
        assert [file.name for file in found.files] == [names[2], *names[:2]]
        assert [file.for_validation for file in found.files] == [True, False, False]
        assert found.with_validation(patterns) == found
    assert listing.with_validation(()) == listing
    with pytest.raises(InputError, match=r"--val-input c\.parquet: no file of dataset me/it") as error:
        listing.with_validation(("c.parquet",))
    assert "3 files, from data/a.parquet to more/part_400.jsonl" in str(error.value.hint)
    rows = Listing("me/it", "c0ffee", (ListedFile("x/train", 0, ""),))
    with pytest.raises(InputError, match="read row by row"):
        rows.with_validation(("*",))


def test_no_batch_of_small_files_holds_files_of_both_splits(tmp_path: Path) -> None:
    """They are read in batches of their own, so that the boundary between the splits is where files meet."""
    for number, text in enumerate(FIRST):
        write_jsonl(tmp_path / f"{number:02}.jsonl", [text])
    named = sorted(tmp_path.glob("0*.jsonl"))[3:7]
    job = runs.job_of(tmp_path / "out", tmp_path, val_input=tuple(map(str, named)))
    batches = list(job.source.batches(runs.START))
    assert [len(batch.members) for batch in batches] == [4, len(FIRST) - 4]
    runs.build_inline(tmp_path / "out", tmp_path, val_input=tuple(map(str, named)), shard_tokens=10**6)
    train, val = runs.shards_in(tmp_path / "out").values()
    splits = reference.stream(FIRST[3:7]), reference.stream([*FIRST[:3], *FIRST[7:]])
    found = [np.load(io.BytesIO(shard)).tolist() for shard in (val, train)]
    assert found == [tokens.tolist() for tokens in splits]
