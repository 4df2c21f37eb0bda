"""Ctrl-C and kills of a whole run, workers and all, that writes into a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import inline, reference, runs
from tests.support.bucket_server import Door, Fault
from tests.support.bucket_view import BucketView, Watcher, check_finished
from tests.support.documents import make_documents
from tests.support.inputs import write_text
from tests.support.promises import Measure, Tries

TEXTS = [text for text in make_documents(1500, seed=36) if text]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_text(tmp_path / "a.txt", TEXTS)


@pytest.fixture
def expected(source: Path) -> dict[str, bytes]:
    documents = [text for text in source.read_text().split("<|endoftext|>") if text]
    return reference.shard_files(reference.stream(documents), 50_000)


def words_for(source: Path, out: str, scratch: Path) -> list[str]:
    return [
        "build", "--input", str(source), "--out", out, "--scratch", str(scratch), "--workers", "2",
        "--shard-tokens", "50k", "--engine", "tiktoken", "--batch-bytes", "8k",
    ]  # fmt: skip


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        runs.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize("step", ["an upload", "the manifest", "the check in the end"])
def test_ctrl_c_while_the_bucket_is_silent(
    bucket_url: str, door: Door, tmp_path: Path, source: Path, expected: dict[str, bytes], within: Measure, step: str
) -> None:
    """It stops in seconds, whatever waits for an answer, and says how to go on; then the same bytes."""
    out, scratch = f"{bucket_url}/folder", tmp_path / "scratch"
    method, path, skipped, wanted = {
        "an upload": ("PUT", "train_000001", 0, 1),
        "the manifest": ("PUT", "manifest.json", 1, 1),
        "the check in the end": ("GET", "npy", 0, 2),  # the first one is for the report
    }[step]
    silence = Fault(method, path, skip=skipped, stall_seconds=600, times=99)
    door.faults = [silence]
    words = words_for(source, out, scratch)
    process = start(words)
    while silence.times > 99 - wanted:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    with within(10.0):
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "-m fineweb_shards build" in errors.partition("resume with: ")[2]
    door.faults = []
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    check_finished(BucketView(door.endpoint, out), scratch, expected)


@pytest.mark.full
@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_kills_of_the_whole_group(
    bucket_url: str, door: Door, tmp_path: Path, source: Path, expected: dict[str, bytes], tries: Tries
) -> None:
    """At a request that changes something, resumed each time: nothing torn, and the same bytes."""
    out, scratch = f"{bucket_url}/folder", tmp_path / "scratch"
    watcher = Watcher(BucketView(door.endpoint, out), door, expected)
    words = words_for(source, out, scratch)
    for attempt in tries(1, 20):
        process = start(words)
        left = 6 + attempt % 7

        def count(method: str, path: str, process: subprocess.Popen[str] = process) -> None:
            nonlocal left
            left -= method != "GET"
            if left == 0:
                os.killpg(process.pid, signal.SIGKILL)

        door.on_request = count
        process.communicate(timeout=100)
    door.on_request = lambda method, path: None
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert watcher.torn == []
    check_finished(BucketView(door.endpoint, out), scratch, expected)
