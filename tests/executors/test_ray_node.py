"""A node's processes in a run on Ray, without a cluster: what they are sent, see, write and leave."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest

import fineweb_shards
from fineweb_shards.errors import InputError, OutputError
from fineweb_shards.executors.messages import FileOrder, FileResult, StoredTokens, WorkOrder
from fineweb_shards.executors.ray import worker
from fineweb_shards.executors.ray.board import (
    EncodedBatch,
    Shipment,
    apply_environment,
    pack_environment,
    pack_vocabulary,
    unpacked,
)
from fineweb_shards.output import cleanup, shard_files
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.shard_files import Contents
from fineweb_shards.output.store import Segment
from fineweb_shards.sources.source import Parts
from fineweb_shards.storage.place import BUCKET
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.vocabulary_files import load_definition
from fineweb_shards.types import Batch, Placement
from tests.executors import poison
from tests.support import runs, vocabularies
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

RUN = "fineweb-shards-4567"


def test_a_node_that_sees_another_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, with the folder and what to do; also if the folder is there, but not the same one."""
    monkeypatch.setattr(worker, "node_name", lambda: "node7 (10.0.0.7)")
    with pytest.raises(OutputError, match=r"node7 \(10.0.0.7\)") as missing:
        worker._check_folder(tmp_path, "mark")
    assert str(tmp_path) in missing.value.message
    assert "shared file system" in missing.value.hint
    (tmp_path / WORK_FOLDER).mkdir()
    (tmp_path / WORK_FOLDER / worker.MARK_FILE).write_text("another")
    with pytest.raises(OutputError):
        worker._check_folder(tmp_path, "mark")
    (tmp_path / WORK_FOLDER / worker.MARK_FILE).write_text("mark")
    worker._check_folder(tmp_path, "mark")


def test_a_node_looks_for_every_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for that of --scratch, with the piles of a shuffle."""
    monkeypatch.setattr(worker, "node_name", lambda: "node7 (10.0.0.7)")
    spec = runs.spec_of(runs.job_of(tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", ["one"])).source)
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    (out / WORK_FOLDER).mkdir(parents=True)
    (out / WORK_FOLDER / worker.MARK_FILE).write_text("mark")
    board: Any = SimpleNamespace(tell=SimpleNamespace(remote=print))
    with pytest.raises(OutputError, match=f"{scratch}: on node node7"):
        worker.RunProcess("run", board, Shipment(pickle.dumps(spec), os.curdir, {}, {}, (out, scratch), "mark"))


def test_a_node_that_does_not_see_the_input_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damaged file, which might be left out: the run stops, and names node and file."""
    monkeypatch.setattr(worker, "node_name", lambda: "node7 (10.0.0.7)")
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    source = runs.job_of(tmp_path / "out", path, on_bad_file="skip").source
    process = worker.RunProcess.__new__(worker.RunProcess)
    process._source = source
    (batch,) = source.batches(runs.START)
    process._check_input(batch)
    path.unlink()
    encoded = process._encode_batch(WorkOrder(batch), [])
    assert isinstance(encoded.error, InputError)
    assert type(encoded.error) is InputError
    assert str(path) in encoded.error.message
    assert "node7" in encoded.error.message


def test_nodes_get_addresses_and_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this run uses: of the kinds of store that its input and its output are in, and of the hub if the input
    is there. No folder of the driver's, nothing else, and nothing that is set on the node."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    local = runs.job_of(tmp_path / "out", path).source
    part = local.parts[0]
    of_hub = Parts((replace(part, settings=replace(part.settings, hub=SimpleNamespace())),))
    (file,) = local.files
    of_google = Parts((replace(part, files=(replace(file, path="gs://bucket/a.jsonl", place=BUCKET),)),))
    secrets = {
        "HF_TOKEN": "canary",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "GOOGLE_BEARER_TOKEN": "canary",
        "AZURE_STORAGE_SAS_TOKEN": "canary",
        "https_proxy": "http://proxy",
    }
    for name in list(os.environ):
        if name.startswith(("HF_", "DATASETS_", "AWS_", "GOOGLE_", "AZURE_")) or "proxy" in name.lower():
            monkeypatch.delenv(name)
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HOME", "/driver")
    monkeypatch.setenv("SECRET_OF_ANOTHER_PROGRAM", "canary")
    folder = str(tmp_path / "out")
    sent = {
        "": set(pack_environment(local, folder)),
        "hub": set(pack_environment(of_hub, folder)),
        "hub to s3": set(pack_environment(of_hub, "s3://bucket/out")),
        "gs to az": set(pack_environment(of_google, "az://bucket/out")),
    }
    assert sent == {
        "": set(),
        "hub": {"HF_TOKEN", "https_proxy"},
        "hub to s3": {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy"},
        "gs to az": {"GOOGLE_BEARER_TOKEN", "AZURE_STORAGE_SAS_TOKEN", "https_proxy"},
    }


def test_what_is_set_on_a_node_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have a mirror, or credentials, of its own."""
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror")
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.delenv("AWS_REGION")
    apply_environment({"HF_ENDPOINT": "http://hub", "AWS_REGION": "here"})
    assert (os.environ["HF_ENDPOINT"], os.environ["AWS_REGION"]) == ("http://mirror", "here")
    monkeypatch.delenv("AWS_REGION")


@pytest.mark.full
def test_the_files_of_a_vocabulary_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has them while an engine loads them, in a folder of its own, and nothing afterwards; nor, for long, what a
    process left there that was killed while it loaded."""
    node = tmp_path / "node"
    monkeypatch.setattr("tempfile.tempdir", str(node))
    left, loading = node / "fineweb-shards-tokenizer-1", node / "fineweb-shards-tokenizer-2"
    for folder in (left, loading):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").touch()
    os.utime(left, (0, 0))
    tokenizer = vocabularies.MAKERS[0](tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    flags = dict(zip(tokenizer.flags[::2], tokenizer.flags[1::2], strict=True))
    settings = {name.lstrip("-").replace("-", "_"): str(value) for name, value in flags.items()}
    job = runs.job_of(tmp_path / "out", path, **settings)
    job = job.with_engine(tmp_path / "driver")
    assert job.engine
    assert job.trial
    spec = replace(
        runs.spec_of(job.source),
        engine=job.engine.name,
        shard_format=job.output.shard_format,
        selftest_sha256=job.trial.selftest_sha256,
        mistaken=job.trial.mistaken,
    )
    files = pack_vocabulary(spec.vocabulary)
    assert files
    with unpacked(spec, files) as its:
        assert Path(its.vocabulary.folder).is_relative_to(node)
        assert its.vocabulary == spec.vocabulary
        assert load_definition(its.vocabulary) == load_definition(spec.vocabulary)
        encoder = its.make_encoder()
    assert isinstance(encoder, Encoder)
    assert list(node.iterdir()) == [loading]
    texts = make_documents(20, seed=93)
    encoded = encoder.encode_documents(Texts.from_strings(texts))  # everything was loaded
    assert [ids.tolist() for ids in encoded] == [tokenizer.encode(text) for text in texts]


def test_a_process_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first orders come in several threads at once."""
    board = SimpleNamespace(get_shipment=SimpleNamespace(remote=lambda: None))
    shipment = fineweb_shards.__version__, pickle.dumps(None)
    ray = SimpleNamespace(get_actor=lambda run: board, get=lambda reference: shipment)
    second = threading.Event()
    made: list[object] = []

    def make(*arguments: object) -> object:
        made.append(object())
        if len(made) > 1:
            second.set()
        second.wait(0.2)  # nobody comes
        return made[-1]

    monkeypatch.setattr(worker, "load_ray", lambda: ray)
    monkeypatch.setattr(worker, "RunProcess", make)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(worker._process_of, ["a run that nobody else has"] * 4))
    assert got == made * 4


def test_what_is_tried_one_by_one_is_not_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reads it: here it would stay in memory."""
    monkeypatch.setattr(worker, "node_name", lambda: "node")
    process = process_on(tmp_path)
    fetched: list[Batch] = []
    process._observer = worker.TaskObserver(fetched.append)
    process._prefetcher = SimpleNamespace(prefetch=fetched.append)
    process._encode_batch = lambda order, tokens: EncodedBatch(())
    (batch,) = process._spec.source.batches(runs.START)
    process.encode(1, [WorkOrder(batch, one_by_one=True)], [])
    assert not fetched
    process.encode(1, [WorkOrder(batch)], [])
    assert fetched == [batch]


@pytest.mark.full
def test_a_document_that_crashes_its_process_is_left_out(tmp_path: Path) -> None:
    """As on a single machine; the other documents come with their tokens, which the task holds like all others."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", poison.DEADLY, "two", "left out before"])
    source = runs.job_of(tmp_path / "out", path).source
    process = worker.RunProcess.__new__(worker.RunProcess)
    process._spec, process._vocabulary_files = poison.poisoned(runs.spec_of(source)), {}
    process._observer = worker.TaskObserver(lambda news: None, 1)
    (batch,) = source.batches(runs.START)
    before = hashlib.sha256(b"left out before").hexdigest()
    order = WorkOrder(batch, one_by_one=True, skip_digests=frozenset({before}))
    ((index, block),) = process._encode_in_local_executor(order)
    assert index == 0
    assert block.array.tolist() == [50256, 505, 50256, 11545]
    (document,) = block.quarantined
    assert document.begins == poison.DEADLY
    assert "killed by signal 11" in document.cause


def test_bytes_of_a_stream_go_by_value() -> None:
    """Another machine has no access to a descriptor of this one."""
    shared = SharedBytes(b"text")
    assert shared.by_value().read() == b"text"
    assert not shared.by_value().has_descriptor


def test_a_scratch_file_is_new_and_goes(tmp_path: Path) -> None:
    """What an earlier run has left on a node is never a part of a shard; in the end the file is gone, however it ends,
    and whoever else removes it."""
    path = tmp_path / "not there yet" / "a.tmp"
    with worker._scratch_file(str(path), RUN) as own:
        own.write_bytes(b"something")
    assert not own.exists()
    path.write_bytes(b"of an earlier run")
    with contextlib.suppress(ZeroDivisionError), worker._scratch_file(str(path), RUN) as own:
        assert own.read_bytes() == b""
        raise ZeroDivisionError
    assert not own.exists()
    with worker._scratch_file(str(path), RUN) as own:
        own.unlink()
    assert path.read_bytes() == b"of an earlier run"


def process_on(folder: Path) -> worker.RunProcess:
    """A node's process with no cluster: the objects that its orders refer to are the arrays themselves."""
    process = worker.RunProcess.__new__(worker.RunProcess)
    source = runs.job_of(folder / "out", write_jsonl(folder / "a.jsonl", ["one"])).source
    process._spec = replace(runs.spec_of(source), store=FolderStore(folder))
    process._run = RUN
    process._board = SimpleNamespace(tell=SimpleNamespace(remote=lambda news: None))
    return process


def test_two_attempts_to_seal_a_file_share_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may still be running, because only its line broke, when the second begins and ends on the same node:
    both see their own tokens, and nothing is left."""
    exceptions = SimpleNamespace(ObjectLostError=ZeroDivisionError)
    monkeypatch.setattr(worker, "load_ray", lambda: SimpleNamespace(get=lambda one: one, exceptions=exceptions))
    process = process_on(tmp_path)
    path = tmp_path / "work" / "shard.npy.0.tmp"
    tokens = np.array([5, 6, 7], np.uint16)
    results = []

    def read_back(file: BinaryIO, *arguments: object) -> Contents:
        if not results:
            results.append(FileResult(0))
            results[0] = do()
        return read_contents(file, *arguments)

    def do() -> FileResult:
        placement = Placement(str(path), np.zeros(1, np.int64), np.array([[0, 3]]))
        segment = Segment(path, 0, "shard.npy", "train", 0, 6, 3, 0, whole=False)
        order = FileOrder(1, segment, (StoredTokens(0, 0, placement),), on_own_disk=True)
        return process.do([[tokens]], order)

    read_contents = shard_files.read_contents
    monkeypatch.setattr(shard_files, "read_contents", read_back)
    results.append(do())
    assert [one.error for one in results] == [None, None]
    assert [one.sha256 for one in results] == [hashlib.sha256(tokens).hexdigest()] * 2
    assert not list(path.parent.iterdir())


def test_a_killed_run_leaves_no_scratch_file_for_long(tmp_path: Path) -> None:
    """A node's process removes those of earlier runs, and nothing else; so does the next run on the driver's machine,
    however new they are."""
    work = tmp_path / WORK_FOLDER
    work.mkdir()
    left = []
    for run in (RUN, "fineweb-shards-0123"):
        with worker._scratch_file(str(work / "shard.npy.0.tmp"), run) as path:
            left.append(path)
        path.touch()
    others = {work / name for name in ("shard.npy.0.tmp", "log.1.2.tmp", "log.txt")}
    for path in others:
        path.touch()
    worker._remove_leftovers(work, RUN)
    assert set(work.iterdir()) == {left[0], *others}
    assert {path for path in work.glob("*.tmp") if not cleanup._may_be_in_use(path)} == {
        left[0],
        work / "shard.npy.0.tmp",
    }


@pytest.mark.full
def test_a_node_without_a_place_for_shards_says_so(tmp_path: Path) -> None:
    """By its name, with the folder and the flag that names another one."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match=r"file/a\.tmp: node .* can't write shards there") as caught,
        worker._scratch_file(str(tmp_path / "file" / "a.tmp"), RUN),
    ):
        pass
    assert "--scratch" in caught.value.hint
