"""A real file system that is too small: what a build does when it fills up for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet

DOCUMENTS = make_documents(2500, seed=71)
SHARD_TOKENS = 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """512 kB: room for a few shards, not for all."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)


def words_for(disk: Path, max_outage: str) -> list[str]:
    # The total of a stream is unknown, so the run starts, and the disk fills up in the middle of a shard.
    return runs.command(
        "build", "--input", "-", "--format", "jsonl", "--out", disk / "out", "--workers", "1",
        "--shard-tokens", str(SHARD_TOKENS), "--max-outage", max_outage,
    )  # fmt: skip


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)


EXPECTED = reference.shard_files(reference.stream(DOCUMENTS), SHARD_TOKENS)


@pytest.mark.full
@pytest.mark.promise("a full disk loses nothing")
def test_it_stops_resumably_and_goes_on_when_there_is_space(small_disk: Path, stream: Path) -> None:
    """Exit code 5 and a sentence; finished shards are kept; with space the same command completes."""
    with open(stream, "rb") as file:
        done = subprocess.run(words_for(small_disk, "0"), stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "no space left on the disk" in done.stderr
    assert "Traceback" not in done.stderr
    kept = runs.shards_in(small_disk / "out")
    assert kept
    assert kept.items() <= EXPECTED.items()
    enlarge(small_disk)
    with open(stream, "rb") as file:
        again = subprocess.run(words_for(small_disk, "0"), stdin=file, capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert runs.shards_in(small_disk / "out") == EXPECTED


@pytest.mark.full
@pytest.mark.promise("a full disk loses nothing")
def test_it_waits_and_goes_on_by_itself(small_disk: Path, stream: Path, tmp_path: Path) -> None:
    """The wait is said on the screen and in the log; nobody has to start it again."""
    said = tmp_path / "said"
    with open(stream, "rb") as file, open(said, "w") as screen:
        process = subprocess.Popen(words_for(small_disk, "10min"), stdin=file, stderr=screen, stdout=screen)
        while "waiting for the disk since" not in said.read_text():
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        enlarge(small_disk)
        assert process.wait(timeout=600) == 0, said.read_text()
    assert "the wait for the disk is over" in said.read_text()
    assert runs.shards_in(small_disk / "out") == EXPECTED
    log = (small_disk / "out" / ".fineweb-shards" / "log.txt").read_text()
    assert "no space left on the disk" in log


@pytest.mark.full(but=["1"])
@pytest.mark.promise("a full disk loses nothing")
@pytest.mark.parametrize("free_pages", range(4))
def test_a_disk_that_is_full_at_the_start_has_its_sentence(small_disk: Path, free_pages: int) -> None:
    """Exit code 5, whatever it is that does not fit; with space the same command completes."""
    path = write_jsonl(small_disk.parent / "a.jsonl", DOCUMENTS[:50])
    words = ("build", path, "--out", small_disk / "out", "--shard-tokens", "5k", "--max-outage", "0")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - free_pages * 4096))
    done = inline.run_command(*words)
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("  Free some space")
    ballast.unlink()
    assert inline.run_command(*words).returncode == 0
    expected = reference.shard_files(reference.stream(DOCUMENTS[:50]), 5000)
    assert runs.shards_in(small_disk / "out") == expected


@pytest.mark.promise("no start when the disk can't hold the result")
def test_a_known_total_that_does_not_fit_is_refused(small_disk: Path, tmp_path: Path) -> None:
    """Before anything is written, with how much is missing."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS * 2)
    done = runs.run_command("build", "--input", path, "--out", small_disk / "out", "--workers", "1")
    assert done.returncode == 5
    assert "are missing" in done.stderr
    assert not runs.shards_in(small_disk / "out")
