"""Memory: the peak of all processes, and a run inside a limit that kills."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import fourteen_files, runs
from tests.support.documents import make_documents
from tests.support.standin_faults import LastingFault, Stall
from tests.support.standin_hub import StandInHub, files_of
from tests.support.standin_repository import Repository

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from memory import PeakMemory

MIB = 2**20
BUDGET = 700 * MIB
LINE = b"A plain sentence of some forty characters. "

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is only measured on Linux")


@pytest.mark.full(but=["words0-300000000"])
@pytest.mark.parametrize("limit", [300 * 10**6, 600 * 10**6])
@pytest.mark.parametrize("words", [("build", "--out", "out"), ("plan",)])
def test_too_little_address_space_has_its_sentence(tmp_path: Path, limit: int, words: tuple[str, ...]) -> None:
    """As a shell's `ulimit -v` leaves it: exit code 2 and what to do, before a library aborts."""
    (tmp_path / "a.txt").write_text("a document\n")
    done = subprocess.run(
        runs.command(*words, "a.txt"), capture_output=True, text=True, cwd=tmp_path, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"fineweb-shards: Each process may have {limit // 10**6}.0 MB of address")
    assert done.stderr.splitlines()[1:] == [
        "  Run `ulimit -v unlimited` first, and bound the memory in use with --max-memory."
    ]


def write_giant(path: Path, size: int, ending: bytes) -> Path:
    """So many bytes of text, in lines or all in one."""
    piece = (LINE * 1000)[: -len(ending) or None] + ending
    with open(path, "wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    return path


@contextlib.contextmanager
def hard_limit(size: int) -> Iterator[Path]:
    """A control group in which the kernel kills whoever goes beyond `size`; yields its list of processes."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, name = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
    group = root / f"fineweb-shards-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(size))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no control group can be made here")
    try:
        yield group / "cgroup.procs"
    finally:
        while True:  # processes that were killed leave it a little later
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def run_limited(words: list[str], procs: Path) -> tuple[int, str, int]:
    """Exit code, what was said, and the peak of a command inside a limit."""
    enter = ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *words]
    with subprocess.Popen(enter, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        with PeakMemory(process.pid) as memory:
            _, errors = process.communicate()
        return process.returncode, errors, memory.peak_bytes


@pytest.mark.full(but=["a line of 100 MB"])
@pytest.mark.promise("memory stays within the budget")
@pytest.mark.parametrize(
    ("megabytes", "ending", "more"),
    [
        (100, b"", ["--separator", "none"]),
        (100, b"\n", ["--separator", "line"]),
        pytest.param(1000, b"", ["--separator", "none"], marks=pytest.mark.soak),
        pytest.param(15_000, b"\n\n", ["--no-verify"], marks=pytest.mark.soak),
    ],
    ids=["a line of 100 MB", "100 MB in lines", "a line of 1 GB", "a text of 15 GB"],
)
def test_a_giant_text_inside_a_hard_limit(disk_path: Path, megabytes: int, ending: bytes, more: list[str]) -> None:
    """No worker is killed by the kernel, and all processes together stay inside --max-memory."""
    path = write_giant(disk_path / "giant.txt", megabytes * 10**6, ending)
    words = runs.command(
        "build", "--input", path, "--out", disk_path / "out", "--workers", "2", "--max-memory", str(BUDGET),
        "--shard-tokens", "100M", *more,
    )  # fmt: skip
    with hard_limit(BUDGET + 100 * MIB) as procs:
        code, errors, peak = run_limited(words, procs)
    path.unlink()
    assert code == 0, errors
    assert "was killed" not in errors
    assert 100 * MIB < peak < BUDGET


@pytest.mark.full
@pytest.mark.promise("memory stays within the budget")
def test_a_slow_disk_does_not_fill_the_memory(disk_path: Path) -> None:
    """Workers wait for the writer; what is in flight stays in its window."""
    path = write_giant(disk_path / "giant.txt", 60 * 10**6, b"\n\n")
    driver = Path(__file__).parent / "slow_disk_driver.py"
    words = [sys.executable, str(driver), "build", "--input", str(path), "--out", str(disk_path / "out")]
    words += ["--workers", "2", "--max-memory", str(BUDGET), "--shard-tokens", "100M"]
    with (
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        PeakMemory(process.pid) as memory,
    ):
        assert process.wait() == 0
    assert 100 * MIB < memory.peak_bytes < BUDGET


def write_row_group(path: Path, size: int) -> Path:
    """A parquet file of one row group: documents of 2 to 200 kB, `size` bytes in all. They are ranges of a text of 16
    MiB, so that this process needs little memory."""
    prose, chooser = make_documents(2000, seed=7), random.Random(7)
    data = "\n".join(map(chooser.choice, [prose] * 40_000)).encode()[: 16 * MIB]
    chunks = []
    for number in range(-(-size // len(data))):
        generator = np.random.default_rng(number)
        lengths = np.exp(generator.uniform(np.log(2_000), np.log(200_000), 10_000)).astype(np.int64)
        ends = lengths.cumsum()
        ends = ends[ends <= len(data)].astype(np.int32)
        chunks.append(
            pa.BinaryArray.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        )
    table = pa.table({"text": pa.chunked_array(chunks)})
    pq.write_table(table, path, row_group_size=table.num_rows, compression="zstd", use_dictionary=False)
    return path


@contextlib.contextmanager
def peak_of(words: list[str], **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], PeakMemory]]:
    """A command, and the memory of its processes."""
    with (
        subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **environment}) as process,
        PeakMemory(process.pid) as memory,
    ):
        yield process, memory


def hub_of(folder: Path) -> StandInHub:
    return StandInHub([Repository(fourteen_files.REPO, files_of(folder))])


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.promise("memory stays within the budget")
@pytest.mark.parametrize("place", ["disk", "hub"])
def test_a_row_group_of_3_gb(disk_path: Path, place: str) -> None:
    """Only a part of it is in memory, wherever it comes from."""
    (disk_path / "files").mkdir()
    path = write_row_group(disk_path / "files" / "000_00000.parquet", 3 * 10**9)
    source = ["--input", str(path)] if place == "disk" else [*fourteen_files.DATASET]
    words = runs.command(
        "build", *source, "--out", disk_path / "out", "--workers", "2", "--max-memory", BUDGET, "--no-verify"
    )
    with hub_of(path.parent) as hub:
        environment = fourteen_files.environment(hub, disk_path / "home")
        with peak_of(words, **environment) as (process, memory):
            assert process.wait() == 0
    assert 100 * MIB < memory.peak_bytes < BUDGET


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.promise("memory stays within the budget")
def test_a_slow_disk_and_a_large_row_group_on_the_hub(disk_path: Path) -> None:
    """Such a row group is one batch: its worker waits for the disk, instead of encoding all of it."""
    (disk_path / "files").mkdir()
    write_row_group(disk_path / "files" / "000_00000.parquet", 10**9)
    driver = str(Path(__file__).parent / "slow_disk_driver.py")
    words = [sys.executable, driver, "build", *fourteen_files.DATASET, "--out", str(disk_path / "out")]
    words += ["--workers", "2", "--max-memory", str(BUDGET), "--no-verify"]
    with hub_of(disk_path / "files") as hub:
        environment = fourteen_files.environment(hub, disk_path / "home", SECONDS_FOR_A_SLICE="2")
        with peak_of(words, **environment) as (process, memory):
            time.sleep(30)  # without that wait 500 MB of tokens would have been made
            assert process.poll() is None
            process.terminate()
            assert process.wait() == 143
    assert 100 * MIB < memory.peak_bytes < BUDGET


@pytest.mark.full
@pytest.mark.promise("memory stays within the budget", "a mix is that of a plain loop")
def test_a_mix_waits_for_a_part_that_stalls(disk_path: Path, soak: bool) -> None:
    """What is read and encoded of the others stays in its window: of a file that is as fast as the disk, and of one
    that has to be unpacked front to back."""
    megabytes, seconds = (2000, 60) if soak else (300, 15)
    fast = write_giant(disk_path / "fast.txt", megabytes * 10**6, b"\n\n")
    packed = disk_path / "packed.txt.gz"
    plain = write_giant(disk_path / "plain.txt", megabytes * 10**5, b"\n\n")
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as file:
        shutil.copyfileobj(source, file)
    documents = ["".join(map(str, range(number, number + 300))) for number in range(megabytes * 10)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": documents}), sink, row_group_size=100)
    stalled = LastingFault(Stall(), path_contains=".parquet", spared=5)
    repository = Repository("me/slow", {"a.parquet": bytes(sink.getvalue())})
    words = runs.command(
        "build", "--part", f"input={fast} weight=90", "--part", f"input={packed} weight=9",
        "--part", "dataset=me/slow weight=1", "--out", disk_path / "out", "--workers", 2, "--max-memory", BUDGET,
        "--mix-until", "all-exhausted", "--shard-tokens", "5M", "--no-verify",
    )  # fmt: skip
    with StandInHub([repository], [stalled]) as hub:
        environment = fourteen_files.environment(hub, disk_path / "home")
        with peak_of(words, **environment) as (process, memory):
            assert runs.wait_until(lambda: stalled.injected > 0)
            time.sleep(seconds)
            waiting_peak = memory.peak_bytes
            assert process.poll() is None
            stalled.active = False
            hub.release_stalls()
            assert process.wait() == 0
    assert 100 * MIB < waiting_peak <= memory.peak_bytes < BUDGET
