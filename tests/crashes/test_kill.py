"""kill -9 at any moment: nothing finished is lost, and resuming gives the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet, write_text
from tests.support.promises import Measure, Tries

DRIVER = Path(__file__).parent / "crash_driver.py"


def finished_shards(out: Path) -> dict[str, str]:
    """What the manifest names, checked against the disk: a shard must be durable before it is named."""
    try:
        shards = json.loads((out / "manifest.json").read_text())["shards"]
    except FileNotFoundError:
        return {}
    found = reference.digests(runs.shards_in(out))
    assert all(found[shard["name"]] == shard["sha256"] for shard in shards)
    return {shard["name"]: shard["sha256"] for shard in shards}


class Driver:
    """Another process, whose forks are killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def drive(self, number: int, when: str, path: Path, out: Path) -> tuple[int, int]:
        """A build that ends at its `number`-th file operation: its exit code, and how many operations it had if it got
        to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([number, when, str(path), str(out), 8000]), file=self._process.stdin, flush=True)
        code, operations = json.loads(self._process.stdout.readline())
        return code, operations


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    words = [sys.executable, str(DRIVER)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Driver(process)


@pytest.fixture(scope="module")
def three_shards(tmp_path_factory: pytest.TempPathFactory, driver: Driver) -> tuple[Path, dict[str, bytes], int]:
    """An input, its shards, and how many file operations a whole run has."""
    folder = tmp_path_factory.mktemp("shards")
    documents = make_documents(40, seed=31)
    path = write_parquet(folder / "a.parquet", documents, 10)
    expected = reference.shard_files(reference.stream(documents), 8000)
    assert len(expected) >= 3
    code, operations = driver.drive(0, "before", path, folder / "whole")
    assert code == 0
    assert operations > 3 * len(expected)
    return path, expected, operations


@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_kill_before_and_after_every_file_operation(
    tmp_path: Path, three_shards: tuple[Path, dict[str, bytes], int], driver: Driver, tries: Tries, soak: bool
) -> None:
    """Of a run over several shards: whatever the manifest names is whole, and the next run completes."""
    path, expected, operations = three_shards
    points = [(number, when) for number in range(1, operations + 1) for when in ("before", "after")]
    points = points if soak else points[::5]  # by turns before and after; test_kill_layouts.py has them all
    for attempt in tries(len(points), len(points)):
        number, when = points[attempt]
        out = tmp_path / str(attempt)
        assert driver.drive(number, when, path, out)[0] == -signal.SIGKILL
        assert finished_shards(out).items() <= reference.digests(expected).items()
        runs.build_inline(out, path, shard_tokens=8000, batch_bytes=5000)
        assert runs.shards_in(out) == expected


@pytest.mark.promise("resumes can be chained")
def test_crash_after_crash_after_crash(
    tmp_path: Path, three_shards: tuple[Path, dict[str, bytes], int], driver: Driver, tries: Tries
) -> None:
    """Five in a row, each a resume of the one before: no shard is ever lost, and the end is the same."""
    path, expected, operations = three_shards
    for seed in tries(2, 20):
        chooser = random.Random(seed)
        out = tmp_path / str(seed)
        before: dict[str, str] = {}
        for _ in range(5):
            # A resume has fewer operations: one that gets to its end has nothing left to crash.
            number, when = chooser.randint(1, operations // 2), chooser.choice(["before", "after"])
            driver.drive(number, when, path, out)
            after = finished_shards(out)
            assert before.items() <= after.items() <= reference.digests(expected).items()
            before = after
        runs.build_inline(out, path, shard_tokens=8000)
        assert runs.shards_in(out) == expected


@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_kills_of_the_whole_group_at_random_moments(tmp_path: Path, tries: Tries) -> None:
    """Resumed each time: the same SHA-256 for every file, and no finished shard is ever lost."""
    documents = make_documents(6000, seed=32)
    path = write_text(tmp_path / "a.txt", [text for text in documents if text], "\n<|endoftext|>\n")
    text = path.read_text()
    expected = reference.digests(reference.shard_files(reference.stream(text.split("<|endoftext|>")), 50_000))
    out = tmp_path / "out"
    words = runs.command(
        "build", "--input", path, "--out", out,
        "--shard-tokens", "50k", "--batch-bytes", "16k", "--workers", "2", "--engine", "tiktoken",
    )  # fmt: skip
    chooser = random.Random(7)
    before: dict[str, str] = {}
    for _ in tries(2, 200):
        if (out / "manifest.json").exists() and json.loads((out / "manifest.json").read_text())["complete"]:
            subprocess.run(["rm", "-r", str(out)], check=True)  # it got through: start over
            before = {}
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        pause_until_busy(out, process)
        time.sleep(chooser.uniform(0, 0.4))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        after = finished_shards(out)
        assert before.items() <= after.items() <= expected.items()
        before = after
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert reference.digests(runs.shards_in(out)) == expected


def pause_until_busy(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the run is at work on a shard; then a random moment is one that hurts."""
    while process.poll() is None and not list((out / ".fineweb-shards").glob("*.npy.tmp")):
        time.sleep(0.01)


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_signals_stop_cleanly_and_say_how_to_go_on(tmp_path: Path, tries: Tries, within: Measure) -> None:
    """Ctrl-C or SIGTERM at any moment: own exit code, no traceback, how to resume, the same bytes."""
    documents = [text for text in make_documents(2000, seed=33) if text]
    path = write_text(tmp_path / "a.txt", documents)
    expected = reference.shard_files(
        reference.stream([text for text in path.read_text().split("<|endoftext|>") if text]), 50_000
    )
    chooser = random.Random(12)
    for attempt in tries(2, 30):
        number = [signal.SIGINT, signal.SIGTERM][attempt % 2]
        out = tmp_path / str(attempt)
        words = [
            "build", "--input", path, "--out", out, "--workers", "1",
            "--shard-tokens", "50k", "--engine", "tiktoken", "--batch-bytes", "8k",
        ]  # fmt: skip
        process = subprocess.Popen(
            runs.command(*words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        while process.poll() is None and not (out / ".fineweb-shards" / "lock").exists():
            time.sleep(0.01)
        if attempt % 4 < 2:
            pause_until_busy(out, process)
        time.sleep(chooser.uniform(0, 0.5))
        with within(10.0):
            os.killpg(process.pid, number)
            _, errors = process.communicate(timeout=600)
        assert process.returncode in (128 + number, 0), errors
        assert "Traceback" not in errors
        if process.returncode:
            assert "-m fineweb_shards build" in errors.partition("resume with: ")[2]
            log = (out / ".fineweb-shards" / "log.txt").read_text()
            assert log.splitlines()[-1].endswith("Everything finished is kept")
        assert inline.run_command(*words).returncode == 0
        assert runs.shards_in(out) == expected


HANGING_END = """
import sys, time
from pathlib import Path
from fineweb_shards.commands.main import main
from fineweb_shards.watching.monitor import Monitor

def hang(*end):
    print("ending", flush=True)
    while True:  # Python notices a signal that comes just before a sleep only after it
        time.sleep(0.05)

Monitor.__exit__ = hang
sys.exit(main())
"""


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """Even while the end that the first one has begun hangs."""
    path = write_text(tmp_path / "a.txt", [text for text in make_documents(2000, seed=34) if text])
    out = tmp_path / "out"
    words = f"build --input {path} --out {out} --engine tiktoken --workers 1 --shard-tokens 100M --quiet"
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING_END, *words.split()],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while not (out / ".fineweb-shards" / "heartbeat.json").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "ending\n"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted again: ended at once." in errors
