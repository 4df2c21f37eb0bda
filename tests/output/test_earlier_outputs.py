"""What another build has made is no input: shards, sidecars and manifests are known by where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fineweb_shards.errors import InputError
from tests.support import inline, runs
from tests.support.bucket_folders import upload_folder
from tests.support.inputs import write_jsonl

TEXTS = ["one", "two", "three"]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where texts and shards were put, in a folder and in a bucket."""
    made = tmp_path / "made"
    (made / "mixed").mkdir(parents=True)
    write_jsonl(made / "mixed" / "a.jsonl", TEXTS)
    for out in (made / "mixed", made / "shards"):
        runs.build_inline(out, made / "mixed" / "a.jsonl", layout="olmo-core", shard_tokens=4)
    if request.param == "folder":
        return str(made)
    url = str(request.getfixturevalue("bucket_url"))
    upload_folder(made, url)
    return url


@pytest.mark.parametrize("below", ["shards", "shards/*.npy", "shards/manifest.json"])
def test_finished_shards_as_input_are_told(place: str, below: str, tmp_path: Path) -> None:
    """As what they are, with the command that copies them; nobody is told to repair or remove a manifest."""
    done = inline.run_command("build", f"{place}/{below}", "--out", tmp_path / "out")
    assert done.returncode == InputError.exit_code
    assert f"--input {place}/{below}: these are the shards of a build" in done.stderr
    assert f"fineweb-shards export {place}/shards --layout" in done.stderr
    assert "remove" not in done.stderr


def test_shards_beside_an_input_that_is_read_are_told_too(place: str, tmp_path: Path) -> None:
    """A folder that was named, and of which nothing is read, is a mistake."""
    with pytest.raises(InputError, match="/shards: these are the shards"):
        runs.job_of(tmp_path / "out", f"{place}/mixed", f"{place}/shards")


@pytest.mark.parametrize("form", ["auto", "jsonl"])
def test_texts_beside_shards_are_read(place: str, form: str, tmp_path: Path) -> None:
    """The input folder of an earlier build in place: its texts are the input, and what was made is noted."""
    job = runs.job_of(tmp_path / "out", f"{place}/mixed", format=form)
    assert [file.name for file in job.source.files] == ["a.jsonl"]
    made = 2 * 2 + 1  # shards with their sidecars, and the manifest
    (note,) = job.notes
    assert f"{place}/mixed: {made} files skipped, made by an earlier build: manifest.json, part-" in note


def test_a_manifest_of_others_is_input(tmp_path: Path) -> None:
    """Many programs call a file of JSON lines so, and a shard's name alone says nothing either."""
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "manifest.json", TEXTS)
    (tmp_path / "in" / "part-train-00000.csv.gz").write_text(json.dumps({"text": "four"}))
    job = runs.job_of(tmp_path / "out", tmp_path / "in", format="auto")
    assert [file.name for file in job.source.files] == ["manifest.json", "part-train-00000.csv.gz"]
    assert not job.notes
