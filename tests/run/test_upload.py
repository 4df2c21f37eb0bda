"""`upload` with the real client against the stand-in hub: what goes up, what is sent again, what is said."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forked, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.standin_faults import LastingFault, Reset, ScriptedFaults, Stall, Status
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

TOKEN = "hf_CanaryTokenThatMustNotBeSeen"
REPO = "someone/tokens"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", make_documents(60, seed=71))
    runs.build_inline(folder / "out", path, layout="llm.c", shard_tokens=5000)
    runs.build_inline(folder / "meg", path, layout="megatron", shard_tokens=5000, index=True)
    return folder


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with StandInHub([], write_token=TOKEN) as hub:
        yield hub


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_home")


def environment(hub: StandInHub, home: Path, token: str | None = TOKEN) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "NO_PROXY": "127.0.0.1,localhost",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": token or "",
    }


def upload(
    hub: StandInHub, home: Path, folder: Path, *words: str, token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    done = forked.run_command("upload", folder, "--repo", REPO, *words, **environment(hub, home, token))
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def remote_files(hub: StandInHub) -> dict[str, bytes]:
    repository = hub.repositories[REPO]
    return {path: file.read(0, file.size) for path, file in repository.commits[repository.head].items()}


def sent_bytes(hub: StandInHub) -> int:
    """Of large files."""
    return sum(record.bytes_received for record in hub.requests if record.method == "PUT")


def test_everything_is_there_and_a_second_run_sends_nothing(hub: StandInHub, home: Path, made: Path) -> None:
    """The files byte for byte, manifest and card; nothing is committed or sent twice."""
    done = upload(hub, home, made / "out")
    assert done.returncode == 0, done.stderr
    assert f"datasets/{REPO}" in done.stdout
    files = runs.outputs_in(made / "out")
    found = remote_files(hub)
    card = found.pop("README.md").decode()
    assert found == {**files, "manifest.json": (made / "out" / "manifest.json").read_bytes()}
    assert sent_bytes(hub) == sum(map(len, files.values()))
    for name, data in files.items():
        assert f"| {name} |" in card
        assert hashlib.sha256(data).hexdigest() in card
    manifest = json.loads(found["manifest.json"])
    assert f"{manifest['totals']['tokens']:,}" in card
    assert f"{manifest['totals']['documents']:,}" in card
    commits = list(hub.uploads.commits)
    hub.clear_requests()
    again = upload(hub, home, made / "out")
    assert again.returncode == 0, again.stderr
    assert "Nothing to send" in again.stdout
    assert sent_bytes(hub) == 0
    assert hub.uploads.commits == commits


@pytest.mark.full
def test_sidecars_go_along(hub: StandInHub, home: Path, made: Path) -> None:
    """Megatron's .idx is as much a file as its .bin, and so is the index in its folder; sent once."""
    assert upload(hub, home, made / "meg").returncode == 0
    found = remote_files(hub)
    assert "--data-path tokens/fineweb_train_text_document\n" in found["README.md"].decode()
    assert {name for name in found if "text_document" in name} == set(runs.outputs_in(made / "meg"))
    assert (
        found["index/fineweb_train_text_document.npy"]
        == (made / "meg" / "index" / "fineweb_train_text_document.npy").read_bytes()
    )
    again = upload(hub, home, made / "meg")
    assert "Nothing to send" in again.stdout


def test_the_card_of_a_dataset_from_the_hub(hub: StandInHub, home: Path, made: Path, tmp_path: Path) -> None:
    """Names source, config, commit and licence."""
    folder = tmp_path / "out"
    subprocess.run(["cp", "-r", str(made / "out"), str(folder)], check=True)
    data = json.loads((folder / "manifest.json").read_text())
    data["parts"][0]["settings"] |= {"dataset": "HuggingFaceFW/fineweb-edu", "name": "sample-10BT"}
    data["parts"][0]["commit"] = "c0ffee" * 6
    runs.write_manifest(folder, data)
    assert upload(hub, home, folder).returncode == 0
    card = remote_files(hub)["README.md"].decode()
    for words in (
        "HuggingFaceFW/fineweb-edu",
        "sample-10BT",
        "c0ffee" * 6,
        "license: odc-by",
        "GPT-2, 50,257 ids",
    ):
        assert words in card


def test_an_interrupted_upload_goes_on(hub: StandInHub, home: Path, made: Path) -> None:
    """What was sent before a kill is not sent again."""
    files = runs.outputs_in(made / "out")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    third = [*json.loads((made / "out" / "manifest.json").read_text())["shards"]][2]["name"]
    stall = LastingFault(Stall(), on="upload", path_contains=digests[third])
    hub.faults.append(stall)
    process = subprocess.Popen(
        runs.command("upload", made / "out", "--repo", REPO),
        env={**os.environ, **environment(hub, home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not stall.injected:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(hub.uploads.objects) == 2
    assert hub.uploads.commits == []
    sent = set(hub.uploads.objects)
    stall.active = False
    hub.release_stalls()
    hub.clear_requests()
    assert upload(hub, home, made / "out").returncode == 0
    again = {record.path.rpartition("/")[2] for record in hub.requests if record.method == "PUT"}
    assert not sent & again
    assert {name: data for name, data in remote_files(hub).items() if name in files} == files


@pytest.mark.full
def test_troubles_that_pass_are_waited_out(hub: StandInHub, home: Path, made: Path) -> None:
    """Resets and 5xx while sending and committing; a lost answer to a commit makes no second one."""
    hub.faults += [
        ScriptedFaults([Reset(), None, Status(500), Reset(0.5)], on="upload"),
        ScriptedFaults([Status(503), Reset(0.5)], on="api", path_contains="/commit/"),
    ]
    done = upload(hub, home, made / "out")
    assert done.returncode == 0, done.stderr
    files = runs.outputs_in(made / "out")
    assert {name: data for name, data in remote_files(hub).items() if name in files} == files
    assert len(hub.uploads.commits) == len(set(hub.uploads.commits))


def test_private_is_private(hub: StandInHub, home: Path, made: Path) -> None:
    """--private makes a private dataset; without it the dataset is public."""
    assert upload(hub, home, made / "out", "--private").returncode == 0
    assert hub.repositories[REPO].access == "private"


def test_a_card_of_somebody_else_is_left_alone(hub: StandInHub, home: Path, made: Path) -> None:
    """Only a card that an upload has made is replaced."""
    hub.repositories[REPO] = Repository(REPO, {"README.md": b"# My own words\n"})
    done = upload(hub, home, made / "out")
    assert done.returncode == 0, done.stderr
    assert remote_files(hub)["README.md"] == b"# My own words\n"
    assert "left alone" in done.stderr


@pytest.mark.parametrize(("token", "words"), [(None, "no token"), ("hf_other", "does not let this token write")])
def test_refusals_are_told(hub: StandInHub, home: Path, made: Path, token: str | None, words: str) -> None:
    """No token, or one without the right: a sentence and the next step, and nothing was sent."""
    done = upload(hub, home, made / "out", token=token)
    assert done.returncode == 3
    assert words in done.stderr
    assert "HF_TOKEN" in done.stderr
    assert sent_bytes(hub) == 0


def test_only_finished_and_sound_shards_are_sent(hub: StandInHub, home: Path, made: Path, tmp_path: Path) -> None:
    """Damage and an unfinished build are found before a byte leaves; a bad name is told."""
    folder = tmp_path / "out"
    subprocess.run(["cp", "-r", str(made / "out"), str(folder)], check=True)
    path = folder / "edu_fineweb_val_000000.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\0\0")
    assert upload(hub, home, folder).returncode == 7
    path.write_bytes(data)
    runs.forget_after(folder, 1)
    for name in runs.outputs_in(folder):
        if name != path.name:
            (folder / name).unlink()
    assert upload(hub, home, folder).returncode == 3
    refused = upload(hub, home, made / "out", "--repo", "a//b c")
    assert refused.returncode == 2
    assert "user/name" in refused.stderr
    assert sent_bytes(hub) == 0
