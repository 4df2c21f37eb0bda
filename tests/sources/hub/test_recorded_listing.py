"""A resume from the hub: the manifest has the files, so that the hub is asked for nothing but their bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub_files import ListedFile, Listing
from tests.support import forked, layout_reference, reference, runs, shuffle_reference
from tests.support.fourteen_files import (
    DATASET,
    FLAGS,
    REPO,
    ROWS_PER_FILE,
    SHARD_TOKENS,
    build,
    build_with_workers,
    documents_of,
    environment,
    expected_shards,
    sample_repository,
)
from tests.support.layout_reference import Wanted
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

FILES = 3


@pytest.fixture
def repository() -> Repository:
    return sample_repository(rows=20, files=FILES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with StandInHub([sample_repository(rows=20, files=FILES)]) as hub:
        done = build(hub, folder / "home", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(made, tmp_path / "out"))


@pytest.fixture
def without_datasets(tmp_path: Path) -> dict[str, str]:
    """An environment in which `datasets` can't be imported."""
    folder = tmp_path / "shadow"
    folder.mkdir()
    (folder / "datasets.py").write_text('raise SystemExit("datasets was imported")\n')
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}


def lose_last_shard(out: Path) -> None:
    (out / sorted(expected_shards(FILES))[-1]).unlink()


@pytest.mark.full
def test_a_finished_run_asks_for_nothing(
    hub: StandInHub, home: Path, out: Path, without_datasets: dict[str, str]
) -> None:
    """Started again it says so, without a request, and without a network."""
    done = build_with_workers(hub, home, out, **without_datasets, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "Nothing to do" in done.stdout
    assert not hub.requests


@pytest.mark.full
@pytest.mark.parametrize("how", [[], ["--download"]], ids=["by ranges", "by download"])
def test_a_resume_asks_for_bytes_only(
    hub: StandInHub, home: Path, out: Path, without_datasets: dict[str, str], how: list[str]
) -> None:
    """Begun by ranges, it goes on by ranges or by downloads, at the same commit, without a listing."""
    lose_last_shard(out)
    hub.repositories[REPO].replace_file("sample/10BT/000_00000.parquet", b"pushed since")
    done = build_with_workers(hub, home, out, *how, **without_datasets)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected_shards(FILES)
    assert not [record.path for record in hub.requests_of("api") if "/api/datasets/" in record.path]


def test_other_files_are_still_asked_for(hub: StandInHub, home: Path, out: Path) -> None:
    """Another config and another revision are told by name, as before; --fresh lists what the hub has now."""
    other = build(hub, home, out, "--name", "sample-100BT")
    assert other.returncode == 3  # there is no such config
    assert "sample-100BT" in other.stderr
    revised = build(hub, home, out, "--revision", hub.repositories[REPO].head)
    assert revised.returncode == 4
    assert "--revision was not set" in revised.stderr
    pushed = hub.repositories[REPO].replace_file("README.md", b"---\n---\n# new\n")
    hub.clear_requests()
    fresh = build(hub, home, out, "--fresh", "--yes")
    assert hub.api_requests > 0
    assert fresh.returncode == 3  # the new card has no config of that name
    assert json.loads((out / "manifest.json").read_text())["parts"][0]["commit"] != pushed


@pytest.mark.full
def test_a_file_of_the_dataset_for_validation(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """It is read first; a resume takes the choice from the manifest, and refuses another by name."""
    out, words = tmp_path / "out", ("--val-input", "002_*.parquet")
    documents = [text for number in (2, 0, 1) for text in documents_of(number)]
    wanted = Wanted("build-nanogpt", SHARD_TOKENS, val_documents=ROWS_PER_FILE)
    expected = layout_reference.files(documents, wanted)
    done = build(hub, home, out, *words)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected
    (out / sorted(expected)[0]).unlink()  # a shard for training
    hub.clear_requests()
    done = build(hub, home, out, *words)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected
    assert not [record.path for record in hub.requests_of("api") if "/api/datasets/" in record.path]
    other = build(hub, home, out, "--val-input", "001_00000.parquet")
    assert other.returncode == 4
    assert "sample/10BT/002_00000.parquet of --val-input" in other.stderr
    unknown = build(hub, home, tmp_path / "new", "--val-input", "400_*")
    assert unknown.returncode == 3
    assert "--val-input 400_*: no file of dataset" in unknown.stderr


@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize("name", ["../escape.parquet", "/etc/passwd", "a/../../b.parquet", "..", ""])
def test_no_download_escapes_its_folder(tmp_path: Path, name: str) -> None:
    """A doctored manifest can't make us write elsewhere."""
    with pytest.raises(HubError, match="not a valid name in a dataset"):
        Listing(REPO, "c0ffee", (ListedFile(name, 1, "ab"),)).input_files(tmp_path, download=True)


# A build that ends for good where the first record of its second pass would be told.
STOPPED = """
import os, sys
from fineweb_shards.commands.main import main
from fineweb_shards.watching.progress import Progress

Progress.finish_shards = lambda self, records: os._exit(77)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("way", [[], ["--download"]])
def test_the_second_pass_of_a_shuffle_needs_no_hub(tmp_path: Path, repository: Repository, way: list[str]) -> None:
    """Everything of the input is in piles: a resume asks for nothing, and what was downloaded is gone."""
    out, home = tmp_path / "out", tmp_path / "home"
    flags = ["build", *DATASET, "--out", out, *FLAGS, "--shuffle", 3, *way]
    with StandInHub([repository]) as hub:
        words = [sys.executable, "-c", STOPPED, *map(str, flags)]
        variables = environment(hub, home)
        stopped = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert stopped.returncode == 77, stopped.stderr
    assert not list((out / ".fineweb-shards").rglob("*.parquet"))
    done = forked.run_command(*flags, "--max-outage", "1s", **variables)
    assert done.returncode == 0, done.stderr
    documents = [text for number in range(FILES) for text in documents_of(number)]
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(documents, 3)), SHARD_TOKENS)
    assert runs.shards_in(out) == expected
