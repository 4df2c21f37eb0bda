"""Builds and exports into a bucket and out of it: the bytes of a folder, and what a user is told."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.commands import folders
from fineweb_shards.errors import DamageError
from fineweb_shards.events import Observer
from fineweb_shards.output.opening import open_store_to_read
from fineweb_shards.run import export as export_module
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.watching.status import read_status
from tests.support import inline, runs
from tests.support.bucket_folders import upload_folder
from tests.support.bucket_server import Door
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted, files

DOCUMENTS = make_documents(60, seed=29)
SHARD_TOKENS = 1500


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder."""
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    runs.build_inline(folder / "out", path, shard_tokens=SHARD_TOKENS)
    return folder / "out"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def objects_in(url: str) -> dict[str, bytes]:
    """All objects of a folder that are not in the work folder, without the manifest."""
    bucket = Bucket(url)
    names = [info.name for info in bucket.list() if not info.name.startswith(".fineweb-shards/")]
    return {name: (bucket.read(name) or (b"",))[0] for name in names if name != "manifest.json"}


def expected(layout: str, **more: Any) -> dict[str, bytes]:
    return files(DOCUMENTS, Wanted(layout, SHARD_TOKENS, **more))


@pytest.mark.full
def test_export_out_of_a_bucket_and_into_one(made: Path, bucket_url: str, tmp_path: Path) -> None:
    """The bytes of the other layout, by the reference, from any place to any other."""
    upload_folder(made, f"{bucket_url}/a")
    val = ["--val-tokens", str(SHARD_TOKENS)]
    for source, out, layout in (
        (f"{bucket_url}/a", str(tmp_path / "b"), "llm.c"),
        (str(tmp_path / "b"), f"{bucket_url}/c", "nanogpt"),
        (f"{bucket_url}/c", f"{bucket_url}/d", "megatron"),
        (f"{bucket_url}/d", str(tmp_path / "e"), "build-nanogpt"),
    ):
        done = inline.run_command("export", source, "--out", out, "--layout", layout, *val)
        assert done.returncode == 0, done.stderr
        found = objects_in(out) if out.startswith("s3:") else runs.outputs_in(Path(out))
        assert found == expected(layout, val_tokens=SHARD_TOKENS)
        assert inline.run_command("verify", out).returncode == 0
    again = inline.run_command("export", f"{bucket_url}/c", "--out", f"{bucket_url}/d", "--layout", "megatron", *val)
    assert "Nothing to do" in again.stdout


@pytest.mark.full
def test_an_export_reads_every_object_once(made: Path, bucket_url: str, door: Door, tmp_path: Path) -> None:
    """Though each is checked before it is used: bytes out of a bucket cost money."""
    upload_folder(made, f"{bucket_url}/a")
    door.requests.clear()
    done = inline.run_command("export", f"{bucket_url}/a", "--out", tmp_path / "b", "--layout", "plain")
    assert done.returncode == 0, done.stderr
    for name in runs.shards_in(made):
        # One for its header, and one for all of it.
        assert len([line for line in door.requests if line.startswith("GET") and line.endswith(name)]) == 2


def test_verifying_asks_for_every_object_twice_at_most(made: Path, bucket_url: str, door: Door) -> None:
    """One request for its header, and one for all of it; what else there is to know is in one listing. A request takes
    a twentieth of a second, and there may be thousands of shards."""
    upload_folder(made, f"{bucket_url}/a")
    door.requests.clear()
    done = inline.run_command("verify", f"{bucket_url}/a")
    assert done.returncode == 0, done.stderr
    names = runs.shards_in(made)
    assert len(names) > 3
    for name in names:
        assert len([line for line in door.requests if name in line]) == 2, door.requests
    assert len([line for line in door.requests if "list-type" in line]) < 6, door.requests


@pytest.mark.full
def test_a_store_that_ignores_conditions_is_said(bucket_url: str, door: Door, tmp_path: Path) -> None:
    """In the terminal, before the build begins: two runs may not notice each other there."""
    door.ignored_headers = ("if-none-match", "if-match")
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    words = ["--scratch", tmp_path / "scratch", "--shard-tokens", str(SHARD_TOKENS)]
    done = inline.run_command("build", "--input", path, "--out", f"{bucket_url}/a", *words)
    assert done.returncode == 0, done.stderr
    assert "does not check conditions, so two runs may not notice each other" in done.stderr
    assert "the wait for the lock" not in done.stderr


@pytest.mark.full
def test_an_export_between_buckets_is_resumed(made: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption in the middle, with the same bytes."""
    upload_folder(made, f"{bucket_url}/a")
    words = ["export", f"{bucket_url}/a", "--out", f"{bucket_url}/b", "--layout", "nanogpt", "--val-tokens", "1500"]
    blocks, seen = export_module._sections, 0

    def breaking(*arguments: Any, **settings: Any) -> Any:
        for block in blocks(*arguments, **settings):
            nonlocal seen
            seen += 1
            if seen == 5:
                raise DamageError("broken off")
            yield block

    with monkeypatch.context() as patch:
        patch.setattr(export_module, "_sections", breaking)
        assert inline.run_command(*words).returncode == 7
    assert "train.bin" not in objects_in(f"{bucket_url}/b")
    assert "stopped" in inline.run_command("status", f"{bucket_url}/b").stdout
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert objects_in(f"{bucket_url}/b") == expected("nanogpt", val_tokens=SHARD_TOKENS)


def test_a_damaged_source_is_refused(made: Path, bucket_url: str, tmp_path: Path) -> None:
    """By name, before its tokens are anywhere."""
    bucket = upload_folder(made, f"{bucket_url}/a")
    name = sorted(runs.shards_in(made))[2]
    bucket.overwrite(name, runs.shards_in(made)[name][:-2] + b"\0\0")
    done = inline.run_command("export", f"{bucket_url}/a", "--out", tmp_path / "b", "--layout", "llm.c")
    assert done.returncode == 7
    assert f"{bucket_url}/a: {name}: SHA-256 is" in done.stderr


@pytest.mark.full
def test_a_tokenizer_comes_along(bucket_url: str, tmp_path: Path) -> None:
    """The file that says what the ids mean is copied into the bucket and out of it: inspect can decode."""
    tokenizer = tmp_path / "bytes.tiktoken"
    lines = [f"{base64.b64encode(bytes([number])).decode()} {number}\n" for number in range(256)]
    tokenizer.write_text("".join(lines))
    path = write_jsonl(tmp_path / "a.jsonl", ["hello", "world"])
    done = inline.run_command(
        "build", path, "--out", f"{bucket_url}/a", "--tokenizer", tokenizer, "--pattern", "gpt2",
        "--eot", "256", "--val-documents", "0", "--layout", "plain",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for source, out in ((f"{bucket_url}/a", tmp_path / "b"), (tmp_path / "b", f"{bucket_url}/c")):
        done = inline.run_command("export", source, "--out", out, "--layout", "plain", "--val-documents", "0",
                                  "--shard-tokens", "7")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "world" in inline.run_command("inspect", out, "--document", "1").stdout


@pytest.mark.full
def test_what_a_build_into_a_bucket_says(bucket_url: str, tmp_path: Path, caches: Path) -> None:
    """How to train on it with what works, where the report is, and both are true."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    url = f"{bucket_url}/some/out"
    done = inline.run_command("build", path, "--out", url, "--shard-tokens", "1500")
    assert done.returncode == 0, done.stderr
    assert f'ShardLoader("{url}", "train"' in done.stdout
    assert f"a trainer that reads local files, copy them first:\n    aws s3 sync {url} out\n" in done.stdout
    assert 'np.load("out/edufineweb_train_000001.npy"' in done.stdout
    assert 'np.load("s3' not in done.stdout
    report = next(line for line in done.stdout.splitlines() if line.startswith("report ")).split(maxsplit=1)[1]
    assert "<html" in Path(report).read_text()
    assert Bucket(url).read(".fineweb-shards/report.html") is None


def test_a_report_is_where_it_says(made: Path, bucket_url: str, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache folder, after the command has ended; the bucket is as it was."""
    bucket = upload_folder(made, f"{bucket_url}/a")
    before = {info.name: info.etag for info in bucket.list()}
    opened: list[str] = []
    monkeypatch.setattr(folders.webbrowser, "open", lambda address: opened.append(address) or True)
    done = inline.run_command("report", f"{bucket_url}/a", "--open")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert caches in path.parents
    assert opened == [path.as_uri()]
    assert "<h1" in path.read_text()
    assert {info.name: info.etag for info in bucket.list()} == before


def test_status_follows_what_is_in_the_bucket(made: Path, bucket_url: str) -> None:
    """Running as long as the lock is renewed, with the newest figures at each look; then complete."""
    bucket = upload_folder(made, f"{bucket_url}/a")
    data = json.loads((made / "manifest.json").read_text())
    data.pop("checksum")
    begun = {**data, "shards": data["shards"][:3], "complete": False, "totals": {}}
    bucket.overwrite("manifest.json", json.dumps(begun).encode())
    assert inline.run_command("status", f"{bucket_url}/a").returncode == 21

    def look() -> tuple[int, int]:
        shown = inline.run_command("status", f"{bucket_url}/a", "--json")
        return shown.returncode, json.loads(shown.stdout)["shards"]

    bucket.overwrite(".fineweb-shards/lock.json", b"{}")
    assert look() == (20, 3)
    bucket.overwrite("manifest.json", json.dumps({**begun, "shards": data["shards"][:5]}).encode())
    assert look() == (20, 5)
    bucket.upload(made / "manifest.json", "manifest.json")
    bucket.delete([".fineweb-shards/lock.json"])
    assert look() == (0, len(data["shards"]))


def test_a_run_that_ends_while_one_looks_is_complete(made: Path, bucket_url: str) -> None:
    """What it has written last is read after the lock was looked at, not before."""
    bucket = upload_folder(made, f"{bucket_url}/a")
    runs.forget_after(made_copy := shutil.copytree(made, made.parent / "copy"), 3)
    bucket.upload(made_copy / "manifest.json", "manifest.json")
    store = open_store_to_read(f"{bucket_url}/a", Observer())
    bucket.upload(made / "manifest.json", "manifest.json")
    assert read_status(store).state == "complete"


def test_a_lock_that_nobody_renews_is_no_run(made: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed leaves its lock; a minute later it counts as stopped."""
    bucket = upload_folder(made, f"{bucket_url}/a")
    bucket.overwrite(".fineweb-shards/lock.json", b"{}")
    store = open_store_to_read(f"{bucket_url}/a", Observer())
    assert store.is_locked()
    now = time.time
    monkeypatch.setattr("fineweb_shards.output.bucket_work_folder.time.time", lambda: now() + 61)
    assert not store.is_locked()
