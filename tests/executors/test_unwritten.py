"""Workers that die, or whose disk fails, between encoding and the name of a file: the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from fineweb_shards.errors import DiskFullError, OutputError, ShardError, WorkerError
from fineweb_shards.executors import task
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.build import run
from fineweb_shards.run.job import open_manifest
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog
from tests.executors import hostile
from tests.support import inline, layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet
from tests.support.layout_reference import Wanted
from tests.support.promises import Measure, Tries

DRIVER = Path(__file__).parent / "hostile_driver.py"
DOCUMENTS = make_documents(120, seed=27)
LAYOUTS = [
    Wanted("build-nanogpt", 3000),
    Wanted("llm.c", 3000, val_ratio=Fraction(1, 4)),
    Wanted("nanogpt", 3000, val_ratio=Fraction(1, 4)),
    Wanted("megatron", 3000, val_tokens=7000),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Documents in row groups so large that most blocks span several files."""
    return write_parquet(tmp_path / "a.parquet", DOCUMENTS, 12)


def build(out: Path, path: Path, wanted: Wanted, workers: int = 1, **settings: object) -> Manifest:
    """A build with hostile workers; the parent is this process."""
    job = runs.job_of(out, path, batch_bytes=2048, engine="tiktoken", **wanted.settings(), **settings)
    progress = Progress(EventLog(job.folder))
    spec = hostile.HostileSpec(
        job.source, job.engine.name, job.config.seed, job.output.shard_format, job.output.store, job.config.max_outage
    )
    with FolderLock(job.folder), LocalExecutor(spec, workers, 10**6, MemoryGuard(2**40), observer=progress) as executor:
        return run(job, open_manifest(job, same_source=False), executor, progress)


def check(out: Path, wanted: Wanted) -> None:
    """Every file is what the reference has, and the manifest says so."""
    expected = layout_reference.files(DOCUMENTS, wanted)
    assert reference.digests(runs.outputs_in(out)) == reference.digests(expected)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"]
    assert {shard["name"] for shard in manifest["shards"]} <= set(expected)
    assert not list((out / ".fineweb-shards").glob("*.tmp"))


def check_unfinished(out: Path, wanted: Wanted, *, killed: bool = False) -> int:
    """Nothing with a final name is torn, and all that the manifest names is there; how much that is. Only a run that
    was killed may have a file that the manifest does not name."""
    expected = reference.digests(layout_reference.files(DOCUMENTS, wanted))
    found = reference.digests(runs.outputs_in(out))
    assert found.items() <= expected.items()
    shards = shards_of(out)
    if wanted.layout not in ("nanogpt", "megatron"):  # files that grow have no name yet
        recorded = {shard["name"]: shard["sha256"] for shard in shards}
        assert recorded.items() <= found.items()
        assert killed or recorded == found
    return len(shards)


def shards_of(out: Path) -> list[dict[str, object]]:
    """What the manifest names."""
    shards: list[dict[str, object]] = json.loads((out / "manifest.json").read_text())["shards"]
    return shards


def deaths_in(out: Path) -> int:
    return (out / ".fineweb-shards" / "log.txt").read_text().count("was killed by signal 9; replaced")


@pytest.mark.full(but=["llm.c"])
@pytest.mark.promise("a worker's death with unwritten tokens costs only time")
@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=[wanted.layout for wanted in LAYOUTS])
def test_a_worker_killed_between_encoding_and_the_answer(
    tmp_path: Path, path: Path, number: int, tries: Tries, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With unwritten tokens, while it writes, between the parts of a block, while it seals: the same SHA-256 of every
    file."""
    chooser = random.Random(number)
    some = [hostile.POINTS[(2 * number + i) % len(hostile.POINTS)] for i in (0, 1)]
    points = hostile.POINTS if soak else some
    for attempt in tries(1, 5):
        kills = [f"{point}@{chooser.randrange(3 if soak else 2)}=kill" for point in points]
        faults = hostile.plan(tmp_path / f"faults {attempt}", *kills)
        monkeypatch.setenv(hostile.FAULTS, str(faults))
        out = tmp_path / str(attempt)
        build(out, path, LAYOUTS[number], workers=1 + attempt % 2)
        check(out, LAYOUTS[number])
        assert not list(faults.glob("*=kill"))
        assert 1 <= deaths_in(out) <= len(kills)  # one death may be that of two threads


@pytest.mark.promise("a failing write in a worker never leaves a torn shard")
def test_a_disk_that_is_full_for_a_while_at_every_write(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a worker fails once or twice: it waits and goes on, with the same bytes."""
    faults = [f"write@{number}=ENOSPC" for number in range(200) if number % 3]
    monkeypatch.setenv(hostile.FAULTS, str(hostile.plan(tmp_path / "faults", *faults)))
    out = tmp_path / "out"
    build(out, path, LAYOUTS[1], max_outage=3600)
    check(out, LAYOUTS[1])
    assert len(list((tmp_path / "faults").glob("write@*"))) < len(faults) - 20


@pytest.mark.full(but=["build-nanogpt-EIO"])
@pytest.mark.promise("a failing write in a worker never leaves a torn shard")
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(
    "number", [0, pytest.param(2, marks=pytest.mark.soak)], ids=[LAYOUTS[0].layout, LAYOUTS[2].layout]
)
def test_a_disk_that_fails_for_good_at_any_write(
    tmp_path: Path, path: Path, number: int, fault: str, tries: Tries, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with exit code 5, no file with a name is torn, and a resume has the same bytes."""
    wanted = LAYOUTS[number]
    error = DiskFullError if fault == "ENOSPC" else OutputError
    for attempt in tries(1, 30):  # a run has about so many writes
        write = attempt if soak else 25
        faults = hostile.plan(tmp_path / f"faults {attempt}", f"write@{write}=lasting-{fault}")
        monkeypatch.setenv(hostile.FAULTS, str(faults))
        out = tmp_path / str(attempt)
        caught: OutputError | None = None
        try:
            build(out, path, wanted, workers=1 + attempt % 2, max_outage=0)
        except OutputError as failure:
            caught = failure
        if caught is None:  # it has no such write
            assert soak
            assert (faults / "passed write").stat().st_size <= write
        else:
            assert (type(caught), caught.exit_code) == (error, 5)
            check_unfinished(out, wanted)
        runs.build_inline(out, path, **wanted.settings())
        check(out, wanted)


@pytest.mark.promise("a failing write in a worker never leaves a torn shard")
@pytest.mark.parametrize("point", ["hashed", pytest.param("synced", marks=pytest.mark.soak)])
def test_a_disk_that_fails_while_a_file_is_sealed(
    tmp_path: Path, path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync error is never retried by another worker: the run ends, and a resume has the same bytes."""
    monkeypatch.setenv(hostile.FAULTS, str(hostile.plan(tmp_path / "faults", f"{point}@2=EIO")))
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="Input/output error"):
        build(out, path, LAYOUTS[0])
    assert check_unfinished(out, LAYOUTS[0]) <= 2 + (point == "synced")
    runs.build_inline(out, path, **LAYOUTS[0].settings())
    check(out, LAYOUTS[0])


@pytest.mark.full(but=["encoded"])
@pytest.mark.promise("a worker's death never hangs the run", "a worker's death with unwritten tokens costs only time")
@pytest.mark.parametrize("point", ["encoded", "seal"])
def test_a_bug_in_a_thread_ends_the_run(
    tmp_path: Path, path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the writer, or of what finishes files: with its traceback, and no document is blamed for it."""
    faults = hostile.plan(tmp_path / "faults", f"{point}@0=lasting-bug")
    monkeypatch.setenv(hostile.FAULTS, str(faults))
    sentence = {"encoded": "could not write its tokens", "seal": "could not seal"}
    out = tmp_path / "out"
    with pytest.raises(ShardError, match=rf"(?s)A worker {sentence[point]}.*Traceback.*a bug"):
        build(out, path, LAYOUTS[0])
    assert check_unfinished(out, LAYOUTS[0]) == 0


@pytest.mark.full
@pytest.mark.promise("a worker's death never hangs the run", "a worker's death with unwritten tokens costs only time")
@pytest.mark.parametrize("point", ["encoded", "seal"])
def test_a_thread_that_fails_for_good_ends_the_run(
    tmp_path: Path, path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes, or finishes files, is gone: its worker ends, and after some tries the run."""
    monkeypatch.setattr(task, "MAXIMUM_LOSSES", 2)
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 2)
    faults = hostile.plan(tmp_path / "faults", f"{point}@0=lasting-exit")
    monkeypatch.setenv(hostile.FAULTS, str(faults))
    sentence = {"encoded": "2 workers died before they could write", "seal": "Workers die while they seal"}
    out = tmp_path / "out"
    with pytest.raises(WorkerError, match=f"{sentence[point]}.*one of its threads failed"):
        build(out, path, LAYOUTS[0])
    log = (out / ".fineweb-shards" / "log.txt").read_text()
    assert "a thread of worker" in log
    assert "SystemExit" in log
    assert check_unfinished(out, LAYOUTS[0]) == 0


def command(path: Path, out: Path) -> list[str]:
    words = [
        "build", "--input", path, "--out", out, "--engine", "tiktoken", "--workers", "1",
        "--shard-tokens", "3000", "--batch-bytes", "2048",
    ]  # fmt: skip
    return [str(word) for word in words]


@pytest.mark.promise(
    "kill -9 loses only the unfinished shard", "a worker's death with unwritten tokens costs only time"
)
def test_a_kill_of_everything_between_the_last_write_and_the_name(tmp_path: Path, path: Path, tries: Tries) -> None:
    """Parent and workers at once, while a worker seals a file: a resume has the same bytes."""
    for attempt in tries(1, 20):
        point = ("seal", "hashed", "synced")[attempt % 3]
        faults = hostile.plan(tmp_path / f"faults {attempt}", f"{point}@{attempt % 5 + 1}=kill-all")
        out = tmp_path / str(attempt)
        done = subprocess.run(
            [sys.executable, str(DRIVER), *command(path, out)],
            env={**os.environ, hostile.FAULTS: str(faults)},
            capture_output=True,
            start_new_session=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        check_unfinished(out, LAYOUTS[0], killed=True)
        assert inline.run_command(*command(path, out)).returncode == 0
        check(out, LAYOUTS[0])


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_ctrl_c_with_several_shards_in_flight(tmp_path: Path, path: Path, tries: Tries, within: Measure) -> None:
    """Files that are written but not sealed yet: what is finished is recorded, and the run ends soon."""
    for attempt in tries(1, 10):
        faults = hostile.plan(tmp_path / f"faults {attempt}", "seal@1=lasting-wait")
        (faults / "closed").touch()
        out = tmp_path / str(attempt)
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), *command(path, out)],
            env={**os.environ, hostile.FAULTS: str(faults)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        while len(list((out / ".fineweb-shards").glob("*.npy.tmp"))) < 3 or not shards_of(out):
            assert process.poll() is None
            time.sleep(0.01)
        with within(10.0):
            os.killpg(process.pid, signal.SIGINT)
            if attempt % 2:
                (faults / "closed").unlink()
            _, errors = process.communicate(timeout=600)
        assert process.returncode == 130, errors
        assert b"Traceback" not in errors
        assert check_unfinished(out, LAYOUTS[0], killed=True) >= 1
        assert not list((out / ".fineweb-shards").glob("*.npy.tmp"))
        assert inline.run_command(*command(path, out)).returncode == 0
        check(out, LAYOUTS[0])
