"""kill -9 at any moment: nothing finished is lost, and resuming gives the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import reference
import runs
from documents import make_documents
from inputs import write_parquet, write_text

DRIVER = Path(__file__).parent / "crash_driver.py"


def finished_shards(out: Path) -> dict[str, str]:
    """What the ledger names, checked against the disk: a shard must be durable before it is named."""
    try:
        shards = json.loads((out / "manifest.json").read_text())["shards"]
    except FileNotFoundError:
        return {}
    found = reference.digests(runs.shards_in(out))
    assert all(found[shard["name"]] == shard["sha256"] for shard in shards)
    return {shard["name"]: shard["sha256"] for shard in shards}


def test_a_kill_before_and_after_every_file_operation(tmp_path: Path) -> None:
    """Of a run over several shards: whatever the ledger names is whole, and the next run completes."""
    documents = make_documents(40, seed=31)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    expected = reference.shard_files(reference.stream(documents), 8000)
    assert len(expected) >= 3

    def drive(number: int, when: str, out: Path) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(DRIVER), str(number), when, str(path), str(out), "8000"]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    whole = drive(0, "before", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout)
    assert operations > 3 * len(expected)
    for number in range(1, operations + 1):
        for when in ("before", "after"):
            out = tmp_path / f"{number}{when}"
            assert drive(number, when, out).returncode == -signal.SIGKILL
            assert finished_shards(out).items() <= reference.digests(expected).items()
            runs.build_inline(out, path, shard_tokens=8000, batch_bytes=5000)
            assert runs.shards_in(out) == expected
    for number in (5, 4, 6, 5, 7):  # crash, crash, crash, finish, compare
        drive(number, "before", tmp_path / "chained")
    runs.build_inline(tmp_path / "chained", path, shard_tokens=8000)
    assert runs.shards_in(tmp_path / "chained") == expected


def test_twenty_kills_of_the_whole_group_at_random_moments(tmp_path: Path) -> None:
    """Resumed each time: the same SHA-256 for every file, and no finished shard is ever lost."""
    documents = make_documents(30_000, seed=32)
    path = write_text(tmp_path / "a.txt", [text for text in documents if text], "\n<|endoftext|>\n")
    text = path.read_text()
    expected = reference.digests(
        reference.shard_files(reference.stream(text.split("<|endoftext|>")), 100_000)
    )
    out = tmp_path / "out"
    words = runs.command(
        "build",
        "--input",
        path,
        "--out",
        out,
        "--shard-tokens",
        "100k",
        "--batch-bytes",
        "64k",
        "--workers",
        "2",
    )
    chooser = random.Random(7)
    before: dict[str, str] = {}
    kills = 0
    while kills < 20:
        process = subprocess.Popen(
            words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        pause_until_busy(out, process)
        time.sleep(chooser.uniform(0, 0.4))
        ended = process.poll() is not None
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        after = finished_shards(out)
        assert before.items() <= after.items() <= expected.items()
        before = after
        if ended:  # it got through: start over and go on killing
            subprocess.run(["rm", "-r", str(out)], check=True)
            before = {}
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert reference.digests(runs.shards_in(out)) == expected


def pause_until_busy(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the run is at work on a shard; then a random moment is one that hurts."""
    while process.poll() is None and not list((out / ".fineweb-shards").glob("*.npy.tmp")):
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly_and_says_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM: own exit code, no traceback, the command to resume, and the same bytes then."""
    documents = [text for text in make_documents(4000, seed=33) if text]
    path = write_text(tmp_path / "a.txt", documents)
    out = tmp_path / "out"
    words = runs.command(
        "build",
        "--input",
        path,
        "--out",
        out,
        "--shard-tokens",
        "50k",
        "--engine",
        "tiktoken",
        "--batch-bytes",
        "8k",
    )
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pause_until_busy(out, process)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert "resume with: fineweb-shards build" in errors
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    joined = path.read_text().split("<|endoftext|>")
    assert runs.shards_in(out) == reference.shard_files(reference.stream([t for t in joined if t]), 50_000)
