"""A build into a bucket: the same files as in a folder, whole at every moment, and nothing else."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from fineweb_shards.commands import build as build_module
from fineweb_shards.commands import main as cli
from fineweb_shards.errors import ChangedError, NetworkError, OutputError
from fineweb_shards.events import Observer
from fineweb_shards.executors.local import pool
from fineweb_shards.layouts import get_layout
from fineweb_shards.output.cleanup import start_over
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.opening import open_store
from fineweb_shards.output.resume_rules import trim_to_whole_files
from fineweb_shards.run import resources
from tests.support import inline, layout_reference, runs
from tests.support.bucket_server import KEY, SECRET, Door, Fault, use_small_parts
from tests.support.bucket_view import BucketView, Watcher, check_finished
from tests.support.documents import make_documents
from tests.support.doubles import FailingCall
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(36, seed=95)
QUICK = [
    Wanted("build-nanogpt", 6000, index=True),
    Wanted("megatron", 6000, val_tokens=7000),
    Wanted("llm.c", 6000, val_ratio=Fraction(2, 5)),
    Wanted("plain", 6000, val_ratio=Fraction(1, 4), drop=True),
]
LAYOUTS = [
    *QUICK,
    Wanted("build-nanogpt", 6000, val_tokens=3000),
    Wanted("nanogpt", 6000, val_ratio=Fraction(1, 4)),
    Wanted("modded-nanogpt", 6000, val_documents=9),
    Wanted("datatrove", 6000, val_tokens=3000, index=True),
    Wanted("olmo-core", 6000, val_ratio=Fraction(1, 4), index=True),
    Wanted("torchtitan", 6000, index=True),
    Wanted("automodel", 6000),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def out(bucket_url: str) -> str:
    return f"{bucket_url}/folder"


@pytest.fixture
def view(bucket_environment: str, out: str) -> BucketView:
    return BucketView(bucket_environment, out)


@pytest.fixture
def build(out: str, source: Path, scratch: Path) -> Callable[..., object]:
    def call(wanted: Wanted, scratch: Path = scratch, **settings: object) -> object:
        return runs.build_inline(
            out,
            source,
            **{"engine": "tiktoken", "max_outage": 20, **wanted.settings(), "scratch": str(scratch), **settings},
        )

    return call


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of more than 4 KiB are uploaded in parts."""
    use_small_parts(monkeypatch)


@pytest.mark.full(but=["megatron"])
@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "wanted", [pytest.param(one, marks=[] if one in QUICK else pytest.mark.soak, id=one.layout) for one in LAYOUTS]
)
def test_every_layout_has_the_bytes_of_the_reference(
    build: Callable[..., object], view: BucketView, door: Door, scratch: Path, wanted: Wanted
) -> None:
    """And no object is ever visible under a final name with other bytes."""
    expected = layout_reference.files(DOCUMENTS, wanted)
    watcher = Watcher(view, door, expected)
    build(wanted)
    check_finished(view, scratch, expected)
    assert watcher.torn == []
    assert watcher.changes >= len(expected)
    assert json.loads(view.read("manifest.json"))["complete"]


class Together:
    """Has requests wait until two are under way at the same time."""

    def __init__(self) -> None:
        self.have_met = threading.Event()
        self._first = threading.Lock()

    def arrive(self) -> None:
        if self._first.acquire(blocking=False):
            self.have_met.wait(10)
            self._first.release()
        else:
            self.have_met.set()


NANOGPT = Wanted("build-nanogpt", 6000)
FILES = layout_reference.files(DOCUMENTS, NANOGPT)


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize("wanted", [NANOGPT, Wanted("nanogpt", 6000, val_ratio=Fraction(1, 4))])
def test_a_finished_output_grows_on(
    build: Callable[..., object], view: BucketView, door: Door, scratch: Path, wanted: Wanted
) -> None:
    """With a higher --max-tokens, and whole at every moment: as it was, or as it will be."""
    short = dataclasses.replace(wanted, max_tokens=14_000)
    before, after = layout_reference.files(DOCUMENTS, short), layout_reference.files(DOCUMENTS, wanted)
    watcher = Watcher(view, door, before, after)
    build(short)
    check_finished(view, scratch, before)
    build(wanted)
    check_finished(view, scratch, after)
    assert watcher.torn == []


def test_a_lost_object_is_made_again(build: Callable[..., object], view: BucketView, scratch: Path) -> None:
    """Together with what comes after it."""
    build(NANOGPT)
    view.delete(sorted(FILES)[1])
    build(NANOGPT)
    check_finished(view, scratch, FILES)


def test_another_setting_is_refused(build: Callable[..., object], view: BucketView) -> None:
    """By name, as in a folder, also from another machine."""
    build(NANOGPT)
    with pytest.raises(ChangedError, match="--shard-tokens was 6,000"):
        build(dataclasses.replace(NANOGPT, shard_tokens=7000))
    assert view.outputs() == FILES


def test_objects_of_others_are_refused(build: Callable[..., object], view: BucketView) -> None:
    """Shards that nobody has recorded, and a manifest of another program; nothing of them is touched, not even at a
    second try."""
    view.write("edufineweb_train_000001.npy", b"somebody's")
    for _ in range(2):
        with pytest.raises(OutputError, match="never replaces or deletes"):
            build(NANOGPT)
    view.delete("edufineweb_train_000001.npy")
    view.write("manifest.json", b'{"name": "a web application"}')
    for _ in range(2):
        with pytest.raises(OutputError, match="another program"):
            build(NANOGPT)
    assert view.names() == ["manifest.json"]


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_fresh_deletes_what_is_ours_and_nothing_else(
    build: Callable[..., object], out: str, source: Path, scratch: Path, view: BucketView
) -> None:
    """Objects of others stay, and nothing of the old run comes back."""
    build(dataclasses.replace(NANOGPT, index=True))
    view.write("notes.txt", b"mine")
    view.write("index/notes.txt", b"mine")
    view.write(".fineweb-shards/history.json", b"of the old run")
    words = ["build", "--input", source, "--out", out, "--scratch", scratch, "--shard-tokens", "7000"]
    done = inline.run_command(*words, "--engine", "tiktoken", "--workers", "1", "--fresh", "--yes")
    assert done.returncode == 0, done.stderr
    expected = layout_reference.files(DOCUMENTS, dataclasses.replace(NANOGPT, shard_tokens=7000))
    assert view.outputs() == expected
    assert {"notes.txt", "index/notes.txt"} <= {*view.names()}
    assert b"of the old run" not in view.read(".fineweb-shards/history.json")


def test_fresh_asks_for_every_object_once(
    build: Callable[..., object], view: BucketView, door: Door, out: str, scratch: Path
) -> None:
    """To delete it, several at once, and the manifest when all others are gone; sizes are in one listing."""
    build(dataclasses.replace(NANOGPT, index=True))
    names = [*view.outputs(), "manifest.json"]
    store = open_store(out, str(scratch), 20, Observer())
    store.refresh()
    together = Together()
    left: list[str] = []

    def look(method: str, path: str) -> None:
        if method == "DELETE" and path.endswith("manifest.json"):
            left.extend(view.outputs())
        elif method == "DELETE" and "_train_" in path:
            together.arrive()

    door.requests.clear()
    door.on_request = look
    start_over(store, get_layout("build-nanogpt"), lambda line: None, yes=True)
    asked = [line.rpartition("/folder/") for line in door.requests if "/folder/" in line]
    assert sorted(name for method, _, name in asked if name in names) == sorted(names)
    assert {method[:6] for method, _, name in asked if name in names} == {"DELETE"}
    assert together.have_met.is_set()
    assert left == []


@pytest.mark.full
def test_files_that_are_made_again_are_deleted_with_one_listing(
    build: Callable[..., object], view: BucketView, door: Door, scratch: Path
) -> None:
    """However many they are, with their sidecars, and several at once."""
    wanted = dataclasses.replace(NANOGPT, index=True)
    build(wanted)
    view.delete("edufineweb_val_000000.npy")
    together = Together()
    door.requests.clear()

    def look(method: str, path: str) -> None:
        if method == "DELETE" and path.endswith(".npy"):
            together.arrive()

    door.on_request = look
    build(wanted)
    assert together.have_met.is_set()
    deletions = [line.startswith("DELETE") and line.endswith(".npy") for line in door.requests]
    assert sum(deletions) == 2 * len(FILES)
    assert all(deletions[deletions.index(True) :][: 2 * len(FILES)]), door.requests
    check_finished(view, scratch, layout_reference.files(DOCUMENTS, wanted))


@pytest.mark.parametrize(
    ("wanted", "reads"),
    [
        (Wanted("build-nanogpt", 6000, index=True), False),
        (Wanted("olmo-core", 6000), False),
        (Wanted("datatrove", 6000, index=True), True),
    ],
    ids=lambda value: getattr(value, "layout", value),
)
def test_a_finished_build_is_known_by_one_listing(
    build: Callable[..., object], out: str, door: Door, scratch: Path, wanted: Wanted, reads: bool
) -> None:
    """Of a shard its last token is read at most, where the length of a sidecar depends on it. A request takes a
    twentieth of a second, and there may be thousands of shards."""
    build(wanted)
    store = open_store(out, str(scratch), 20, Observer())
    store.refresh()
    manifest = load_manifest(store.folder)
    assert manifest is not None
    door.requests.clear()
    assert trim_to_whole_files(manifest, store) is manifest
    names = {record.name for record in manifest.shards}
    assert len(names) > 3
    asked = [line for line in door.requests if "list-type" not in line]
    assert sorted(asked) == sorted(f"GET /{out.removeprefix('s3://')}/{name}" for name in names if reads)
    assert len(door.requests) - len(asked) < 3


@pytest.mark.full
def test_another_machine_goes_on(build: Callable[..., object], view: BucketView, door: Door, tmp_path: Path) -> None:
    """With another scratch folder; an outage that lasts too long has ended the first run."""
    door.faults = [Fault("PUT", "train_000002", status=503, times=10_000)]
    with pytest.raises(NetworkError) as caught:
        build(NANOGPT, max_outage=1, batch_bytes=2048)
    assert caught.value.exit_code == 10
    door.faults = []
    recorded = {one["name"] for one in json.loads(view.read("manifest.json"))["shards"]}
    assert recorded == {"edufineweb_val_000000.npy", "edufineweb_train_000001.npy"}
    build(NANOGPT, tmp_path / "elsewhere")
    check_finished(view, tmp_path / "elsewhere", FILES)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=403, code="AccessDenied", times=999), "access is denied"),
        (Fault(status=403, code="InvalidAccessKeyId", times=999), "the credentials are refused"),
        (Fault(status=404, code="NoSuchBucket", times=999), "there is no such bucket"),
        (Fault(status=403, code="ExpiredToken", times=999), "the credentials have expired"),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_a_refusal_is_a_sentence(out: str, source: Path, scratch: Path, door: Door, fault: Fault, words: str) -> None:
    """With exit code 5 and the next step; no secret is said or kept."""
    door.faults = [fault]
    done = inline.run_command("build", "--input", source, "--out", out, "--scratch", scratch)
    assert done.returncode == 5, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("the HF token appears nowhere")
def test_credentials_are_nowhere(out: str, source: Path, scratch: Path, view: BucketView, door: Door) -> None:
    """Neither on the screen nor in a file, here or in the bucket, whatever goes wrong."""
    door.faults = [Fault("PUT", "train", status=500, code="InternalError"), Fault("PUT", "val", resets=True)]
    words = ["build", "--input", source, "--out", out, "--scratch", scratch, "--shard-tokens", "6000"]
    done = inline.run_command(*words, "--engine", "tiktoken")
    assert done.returncode == 0, done.stderr
    said = [done.stdout.encode(), done.stderr.encode()]
    kept = [path.read_bytes() for path in scratch.rglob("*") if path.is_file()]
    stored = [view.read(name) for name in view.names()]
    for data in (*said, *kept, *stored):
        assert SECRET.encode() not in data
        assert KEY.encode() not in data


@pytest.mark.full
def test_an_error_of_the_second_segment_of_a_checkpoint_is_told(build: Callable[..., object], door: Door) -> None:
    """With a share for validation a checkpoint has two; the first one alone is no checkpoint."""
    door.faults = [Fault("PUT", "edu_fineweb_train", status=503, times=10_000)]
    with pytest.raises(NetworkError):
        build(Wanted("llm.c", 6000, val_ratio=Fraction(2, 5)), max_outage=1, batch_bytes=2048)


@pytest.mark.full
def test_another_tokenizer_travels_with_the_shards(out: str, source: Path, tmp_path: Path, view: BucketView) -> None:
    """Its file is in the bucket, and a machine that has never seen it knows what is there."""
    words = ["build", "--input", source, "--out", out, "--shard-tokens", "6000", "--eot", "50256"]
    done = inline.run_command(*words, "--scratch", tmp_path / "a", "--max-tokens", "9000")
    assert done.returncode == 0, done.stderr
    before = view.outputs()
    done = inline.run_command(*words, "--scratch", tmp_path / "b", "--max-tokens", "9000")
    assert done.returncode == 0, done.stderr
    assert "Nothing to do" in done.stdout
    done = inline.run_command(*words, "--scratch", tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert view.outputs() == FILES
    assert before["edufineweb_val_000000.npy"] == FILES["edufineweb_val_000000.npy"]


def test_a_scratch_folder_that_is_too_small_is_refused(
    out: str, source: Path, scratch: Path, view: BucketView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made, with what is missing."""
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: 1000)
    words = ["--out", out, "--scratch", scratch, "--shard-tokens", "100M"]
    done = inline.run_command("build", "--input", source, *words)
    assert done.returncode == 5, done.stderr
    assert "missing" in done.stderr
    assert view.outputs() == {}


def test_a_full_scratch_folder_is_waited_for(
    build: Callable[..., object], view: BucketView, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk is elsewhere; then the same files."""
    failing = FailingCall(os.write, 3, errno.ENOSPC)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        build(NANOGPT)
    assert failing.calls > 3
    check_finished(view, scratch, FILES)


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.soak
def test_a_worker_that_waits_for_the_bucket_is_not_stuck(
    bucket_url: str, door: Door, view: BucketView, source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog ends workers that do nothing, and waiting in an upload is told."""
    monkeypatch.setattr(pool, "STUCK_SECONDS", 6.0)
    monkeypatch.setattr(build_module, "apply_priority", lambda priority: None)
    door.faults = [Fault("PUT", "train_000001", status=503, code="SlowDown", times=10_000)]
    ended = threading.Timer(25.0, door.faults.clear)
    ended.start()
    out = f"{bucket_url}/folder"
    words = ["build", "--input", source, "--out", out, "--scratch", scratch, "--shard-tokens", "6000"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [cli.__file__])
        assert cli.main([*map(str, words), "--workers", "1", "--engine", "tiktoken", "--quiet"]) == 0
    log = next(scratch.rglob("log.txt")).read_text()
    assert "waiting for the network" in log
    assert "did nothing" not in log
    check_finished(view, scratch, FILES)
