"""Files of a dataset by their paths, hf://datasets/…: found like local files, pinned and resumed like --dataset."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import UsageError
from fineweb_shards.run.config import Config
from fineweb_shards.sources.hub_files import parse_hub_address
from tests.support import forked, reference, runs
from tests.support.inputs import write_parquet
from tests.support.standin_faults import CutBody, Reset, ScriptedFaults, Status
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import FINEWEB_EDU_COMMIT, Repository
from tests.support.text_datasets import DOCUMENTS as MANY_DOCUMENTS
from tests.support.text_datasets import REPO, SEPARATOR, environment, write_form

DOCUMENTS = MANY_DOCUMENTS[:240]
SHARD_TOKENS = 3000
# In the order of the names; no card says anything about them.
FORMS = {"a/0.parquet": 0, "a/1.jsonl.zst": 1, "a/b/2.txt": 2, "a/b/3.parquet": 3}
OTHERS = {"README.md": b"# A card", "a/notes.pdf": b"%PDF", "b/other.jsonl": b'{"text": "other"}\n', "b/x.log": b"log"}


def part(number: int) -> list[str]:
    return DOCUMENTS[number * 60 :][:60]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    files = {}
    for name, number in FORMS.items():
        ending = name.partition(".")[2]
        if ending == "parquet":
            files[name] = write_parquet(tmp_path / "made", part(number), 16).read_bytes()
        else:
            files[name] = write_form(tmp_path, ending, part(number))
    return Repository(REPO, {**OTHERS, **files})


def expected(*names: str) -> dict[str, bytes]:
    documents = [text for name in names for text in part(FORMS[name])]
    return reference.shard_files(reference.stream(documents), SHARD_TOKENS)


def words_for(out: Path, path: str, *words: str) -> list[str]:
    flags = ["--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "4k", "--workers", "2", "--separator", SEPARATOR]
    return ["build", f"hf://datasets/{path}", "--out", str(out), *flags, *words]


def build(hub: StandInHub, home: Path, out: Path, path: str, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run_command(*words_for(out, path, *words), **environment(hub, home))


def manifest(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "manifest.json").read_text()))


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a/*.parquet", ["a/0.parquet"]),
        ("a/**/*.parquet", ["a/0.parquet", "a/b/3.parquet"]),
        ("a/b/2.txt", ["a/b/2.txt"]),
        ("a", list(FORMS)),
        (f"@{FINEWEB_EDU_COMMIT}/a/b/", ["a/b/2.txt", "a/b/3.parquet"]),
    ],
)
def test_what_an_address_stands_for(hub: StandInHub, home: Path, tmp_path: Path, path: str, names: list[str]) -> None:
    """A file, a folder or a glob, as on a disk: the tokens of a plain loop over its documents, after faults of the hub;
    the manifest has the commit, and of another type what was skipped is said."""
    hub.faults.append(ScriptedFaults([Status(503), None, Reset(), None, CutBody(), None, Status(500)]))
    done = build(hub, home, tmp_path / "out", f"{REPO}{path if path[0] == '@' else '/' + path}")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected(*names)
    assert FINEWEB_EDU_COMMIT in json.dumps(manifest(tmp_path / "out"))
    assert ("notes.pdf" in done.stderr) == (path == "a")


def test_a_resume_keeps_the_commit(hub: StandInHub, home: Path, tmp_path: Path, repository: Repository) -> None:
    """Whatever is pushed meanwhile, the same files are read, and the hub is not asked for a list again; another path
    is refused."""
    out = tmp_path / "out"
    assert build(hub, home, out, f"{REPO}/a", "--max-tokens", "7k").returncode == 0
    repository.replace_file("a/0.parquet", write_parquet(tmp_path / "new", ["new"]).read_bytes())
    repository.replace_file("a/1b.txt", b"new")
    hub.clear_requests()
    done = build(hub, home, out, f"{REPO}/a")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected(*FORMS)
    assert not hub.api_requests
    done = build(hub, home, out, f"{REPO}/b")
    assert done.returncode == 4
    assert "--input was a when this folder was begun and is b now" in done.stderr


def test_a_file_that_changes_at_its_commit_is_refused(
    hub: StandInHub, home: Path, tmp_path: Path, repository: Repository
) -> None:
    """The hub promises that it does not; a resume names the file."""
    out = tmp_path / "out"
    assert build(hub, home, out, f"{REPO}/a/0.parquet", "--max-tokens", "3k").returncode == 0
    other = write_parquet(tmp_path / "new", part(0)[::-1], 16).read_bytes()
    repository.replace_file("a/0.parquet", other, new_commit=False)
    done = build(hub, home, out, f"{REPO}/a/0.parquet")
    assert done.returncode == 4, done.stderr
    assert "a/0.parquet" in done.stderr


def test_format_and_validation(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """--format says what a file is whose name does not tell; --val-input names files among those of the address."""
    done = build(hub, home, tmp_path / "one", f"{REPO}/b/x.log")
    assert done.returncode == 0, done.stderr
    done = build(hub, home, tmp_path / "two", f"{REPO}/b/x.log", "--format", "jsonl")
    assert done.returncode == 3
    assert "x.log" in done.stderr
    done = build(hub, home, tmp_path / "three", f"{REPO}/a", "--val-input", "a/b/*")
    assert done.returncode == 0, done.stderr
    begin, rest = (reference.stream([text for n in numbers for text in part(n)]) for numbers in ((2, 3), (0, 1)))
    # By name, train comes first.
    shards = [shard for stream in (rest, begin) for shard in reference.shard_files(stream, SHARD_TOKENS).values()]
    assert [*runs.shards_in(tmp_path / "three").values()] == shards


def test_several_parts(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Addresses in parts are read one after the other, also with local files."""
    local = write_parquet(tmp_path / "1.parquet", part(1))
    inputs = (f"hf://datasets/{REPO}/a/b/3.parquet", local, f"hf://datasets/{REPO}/a/0.parquet")
    words = [word for one in inputs for word in ("--part", f"input={one}")]
    flags = words_for(tmp_path / "out", "")[2:]
    done = forked.run_command("build", *words, *flags, **environment(hub, home))
    assert done.returncode == 0, done.stderr
    documents = part(3) + part(1) + part(0)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(documents), SHARD_TOKENS)


@pytest.mark.full
def test_the_real_command_is_killed_and_resumed(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """With workers, after kill -9 in the middle, the bytes are the same."""
    words, out = words_for(tmp_path / "out", f"{REPO}/a"), tmp_path / "out"
    variables = {**os.environ, **environment(hub, home)}
    hub.latency_seconds = 0.05
    with subprocess.Popen(runs.command(*words), env=variables) as running:
        assert runs.wait_until(lambda: hub.content_bytes > 0)
        running.kill()
    assert running.returncode == -signal.SIGKILL
    done = runs.run_command(*words, **environment(hub, home))
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected(*FORMS)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nothing", "there is no such file or folder in this dataset"),
        ("/nothing/*.parquet", "no file matches"),
        ("@nothing/a", "404"),
        ("x/a", "no such dataset"),
    ],
)
def test_what_is_not_there(hub: StandInHub, home: Path, tmp_path: Path, path: str, words: str) -> None:
    """One sentence with the address, and exit code 3."""
    done = build(hub, home, tmp_path / "out", f"{REPO}{path}")
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert REPO in done.stderr


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://datasets/me/x", ("me/x", "", "")),
        ("hf://datasets/me/x/a/*.txt", ("me/x", "", "a/*.txt")),
        ("hf://datasets/me/x@v1.0/a@b/", ("me/x", "v1.0", "a@b")),
        ("hf://datasets/me/x@refs/convert/parquet/d/t/0.parquet", ("me/x", "refs/convert/parquet", "d/t/0.parquet")),
        ("hf://datasets/me/x@a%2Fb/c", ("me/x", "a/b", "c")),
        ("hf://datasets/me", None),
        ("hf://models/me/x/a", None),
        ("hf://buckets/me/x/a", None),
    ],
)
def test_the_parts_of_an_address(text: str, address: tuple[str, str, str] | None) -> None:
    """They are those of huggingface_hub's HfFileSystem."""
    assert parse_hub_address(text) == address


HUB = "hf://datasets/me/x/a"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"input": (HUB, "local.txt")}, "must be the only --input of their part"),
        ({"input": (HUB, HUB)}, "must be the only --input of their part"),
        ({"input": (HUB,), "split": "test"}, "without --name, --split and --revision"),
        ({"input": ("local.txt",), "val_input": (HUB,)}, "must be the only --input of their part"),
        ({"input": (HUB,), "dataset": "me/x"}, "--dataset and --input exclude each other"),
        ({"input": ("hf://models/me/x/a",)}, "only files of datasets"),
        ({"input": ("hf://spaces/me/x/a",)}, "only files of datasets"),
        ({"input": ("hf://datasets/me",)}, "only files of datasets"),
        ({"input": ("HF://datasets/me/x/a",)}, "only files of datasets"),
        ({"input": ("hf:/datasets/me/x/a",)}, "not a valid address"),
        ({"input": ("hf://buckets/me/x/a",)}, "S3 gateway"),
    ],
)
def test_mistakes(settings: dict[str, Any], words: str) -> None:
    """Each has its sentence, before anything is asked."""
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(Config(out="out"), **settings).check()
