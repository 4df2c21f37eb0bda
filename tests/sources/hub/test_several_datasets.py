"""Several datasets from the hub in one build: one after the other, each with its own config, columns and commit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import forked, fourteen_files, reference, runs, text_datasets
from tests.support.documents import make_documents
from tests.support.promises import Tries
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

SHARD_TOKENS = 20_000
FIRST = [text for number in range(2) for text in fourteen_files.documents_of(number)]
SECOND = [f"Second {text}" for text in make_documents(120, seed=77)]
SCORES = [number % 5 for number in range(len(SECOND))]
SECOND_REPO = "someone/scored"
FLAGS = ("--shard-tokens", SHARD_TOKENS, "--batch-bytes", "4k", "--workers", 2)


def scored_file() -> bytes:
    """Documents in the column `body`, with scores."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"body": SECOND, "score": SCORES}), sink, row_group_size=10)
    return bytes(sink.getvalue())


def serving() -> StandInHub:
    second = Repository(SECOND_REPO, {"data/train-00000.parquet": scored_file()})
    return StandInHub([fourteen_files.sample_repository(rows=5, files=2), second])


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def expected() -> dict[str, bytes]:
    """By the reference: all of the first dataset, then what the second one's condition keeps."""
    kept = [text for text, score in zip(SECOND, SCORES, strict=True) if score >= 3]
    return reference.shard_files(reference.stream([*FIRST, *kept]), SHARD_TOKENS)


PARTS = (
    "--part", f"dataset={fourteen_files.REPO} name=sample-10BT",
    "--part", f"dataset={SECOND_REPO} text_column=body where='score >= 3'",
)  # fmt: skip


def test_two_datasets_are_the_references_concatenation(
    hub: StandInHub, home: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """By flags and by [[parts]] of a TOML file; the manifest names each with its commit, settings and files; rerun, it
    has nothing to do."""
    out, environment = tmp_path / "out", fourteen_files.environment(hub, home)
    done = forked.run_command("build", *PARTS, *FLAGS, "--out", out, **environment)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected
    parts = json.loads((out / "manifest.json").read_text())["parts"]
    assert [part["settings"]["dataset"] for part in parts] == [fourteen_files.REPO, SECOND_REPO]
    assert [part["commit"] for part in parts] == [one.head for one in hub.repositories.values()]
    assert [len(part["files"]) for part in parts] == [2, 1]
    config = tmp_path / "mine.toml"
    config.write_text(
        f'[[parts]]\ndataset = "{fourteen_files.REPO}"\nname = "sample-10BT"\n\n'
        f'[[parts]]\ndataset = "{SECOND_REPO}"\ntext_column = "body"\nwhere = "score >= 3"\n'
    )
    again = forked.run_command("build", config, *FLAGS, "--out", out, **environment)
    assert again.returncode == 0, again.stderr
    assert "Nothing to do" in again.stdout


def test_repeated_datasets_share_what_is_said_once(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """`--dataset A --dataset B`: a flag that is given once is for both; one that is given twice is for each its own."""
    words = ["--dataset", fourteen_files.REPO, "--dataset", fourteen_files.REPO, "--name", "sample-10BT"]
    out = tmp_path / "out"
    done = forked.run_command("build", *words, *FLAGS, "--out", out, **fourteen_files.environment(hub, home))
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == reference.shard_files(reference.stream(FIRST * 2), SHARD_TOKENS)
    configs = ["--dataset", fourteen_files.REPO, "--name", "sample-10BT", "--name", "sample-10BT"]
    again = forked.run_command("build", *configs, *FLAGS, "--out", out, **fourteen_files.environment(hub, home))
    assert "Nothing to do" in again.stdout, again.stderr
    words[1] = SECOND_REPO
    refused = forked.run_command(
        "plan", *words, "--name", "default", "--out", out, **fourteen_files.environment(hub, home)
    )
    assert refused.returncode == 3
    assert "Part 1: " in refused.stderr
    assert "sample-10BT" in refused.stderr


def test_a_dataset_that_is_done_keeps_its_size(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """In the plan of a resume, although nothing of it is left to read."""
    out, environment = tmp_path / "out", fourteen_files.environment(hub, home)

    def first_part() -> str:
        done = forked.run_command("plan", *PARTS, *FLAGS, "--out", out, **environment)
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("part 1"))

    before = first_part()
    assert forked.run_command("build", *PARTS, *FLAGS, "--out", out, **environment).returncode == 0
    runs.forget_after(out, 1)
    assert first_part() == before


@pytest.mark.promise("a changed source or setting is refused by name")
def test_a_changed_dataset_is_refused_by_name(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Another condition of the second one, another order, one of the two gone, and a file of the second one that is not
    the same at its commit: the message says which part or file, and nothing is written."""
    out, environment = tmp_path / "out", fourteen_files.environment(hub, home)
    assert forked.run_command("build", *PARTS, *FLAGS, "--out", out, **environment).returncode == 0
    runs.forget_after(out, 1)
    before = runs.shards_in(out)

    def refuse(*words: str) -> str:
        done = forked.run_command("build", *words, *FLAGS, "--out", out, **environment)
        assert done.returncode == 4, done.stderr
        return done.stderr

    changed = [*PARTS[:3], PARTS[3].replace("3", "2")]
    assert f"Part 2 ({SECOND_REPO}): --where was score >= 3" in refuse(*changed)
    assert "Part 1 (HuggingFaceFW/fineweb-edu sample-10BT): --dataset was" in refuse(*PARTS[2:], *PARTS[:2])
    assert "The input had 2 parts when this folder was begun and has 1 now." in refuse(*PARTS[:2])
    hub.repositories[SECOND_REPO].replace_file("data/train-00000.parquet", scored_file() + b"more", new_commit=False)
    assert "data/train-00000.parquet" in refuse(*PARTS)
    assert runs.shards_in(out) == before


@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_killed_in_either_dataset_it_resumes(
    home: Path, tmp_path: Path, expected: dict[str, bytes], tries: Tries
) -> None:
    """`kill -9` of everything after one or after several shards; the rest has the same bytes, and what was pushed to
    both datasets since then is not read."""
    for number in tries(1, 8):
        with serving() as hub:
            kill_and_resume(hub, home, tmp_path / str(number), 1 + number % (len(expected) - 1))
        assert runs.shards_in(tmp_path / str(number)) == expected


def kill_and_resume(hub: StandInHub, home: Path, out: Path, shards: int) -> None:
    """A build that is killed once it has recorded `shards` shards, while new commits are pushed, and resumed."""
    environment = fourteen_files.environment(hub, home)
    words, manifest = runs.command("build", *PARTS, *FLAGS, "--out", out, "--quiet"), out / "manifest.json"
    with subprocess.Popen(words, env={**os.environ, **environment}, start_new_session=True) as process:
        try:
            assert runs.wait_until(
                lambda: manifest.exists() and len(json.loads(manifest.read_text())["shards"]) >= shards
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    hub.repositories[fourteen_files.REPO].replace_file("sample/10BT/000_00000.parquet", b"pushed since")
    hub.repositories[SECOND_REPO].replace_file("data/train-00000.parquet", b"pushed since")
    done = forked.run_command("build", *PARTS, *FLAGS, "--out", out, **environment)
    assert done.returncode == 0, done.stderr


def test_files_of_the_same_name_are_downloaded_apart(home: Path, tmp_path: Path) -> None:
    """Two datasets have a `data.csv` each, which is read from the disk: neither is taken for the other."""
    texts = [["one", "two"], ["three", "four"]]
    repositories = [
        Repository(f"someone/{number}", {"data.csv": ("text\n" + "\n".join(some) + "\n").encode()})
        for number, some in enumerate(texts)
    ]
    out = tmp_path / "out"
    with StandInHub(repositories) as hub:
        words = ["--dataset", "someone/0", "--dataset", "someone/1", "--keep-downloads"]
        done = forked.run_command(
            "build", *words, "--shard-tokens", 100, "--out", out, **fourteen_files.environment(hub, home)
        )
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == reference.shard_files(reference.stream([*texts[0], *texts[1]]), 100)
    assert len(text_datasets.left_in_downloads(out)) == 2
