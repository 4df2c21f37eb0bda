"""The watch over the workers: who does nothing any more is found, and nobody else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Observer
from fineweb_shards.executors import task
from fineweb_shards.executors.local import pool
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.local.pool import ENDLESS_SECONDS, STUCK_SECONDS, Watchdog, WorkerActivity
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.machine import process_life
from fineweb_shards.system.memory_guard import MemoryGuard
from tests.executors import faulty
from tests.support import collecting, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import FakeClock, Listener
from tests.support.inputs import write_parquet

DOCUMENTS = make_documents(400, seed=11)
EXPECTED = reference.stream(DOCUMENTS).tolist()


def watch(lives: list[tuple[str, float] | None], messages: list[int] | None = None) -> str | None:
    """A look a second, and what is found in the end."""
    activity = WorkerActivity()
    found = None
    for number, life in enumerate(lives):
        found = found or activity.look(messages[number] if messages else 0, life, 1.0)
    return found


LONG = int(STUCK_SECONDS)
VERY_LONG = int(ENDLESS_SECONDS)


@pytest.mark.parametrize(
    ("lives", "messages", "fault"),
    [
        pytest.param([("S", 5.0)] * (LONG + 1), None, "did nothing for 10 min", id="deaf"),
        pytest.param([("T", 5.0)] * (LONG + 1), None, "(it is stopped)", id="stopped"),
        pytest.param([("S", 5.0)] * (LONG - 2), None, None, id="a short sleep"),
        pytest.param([("D", 5.0)] * 2 * LONG, None, None, id="a slow disk"),
        pytest.param([("R", 5.0)] * 2 * LONG, None, None, id="no core to be had"),
        pytest.param([("S", second / 1000) for second in range(3 * LONG)], None, None, id="a trickle"),
        pytest.param([("S", 5.0)] * 3 * LONG, [n // 500 for n in range(3 * LONG)], None, id="messages"),
        pytest.param([("R", float(n)) for n in range(VERY_LONG - 9)], None, None, id="a long document"),
        pytest.param([("R", float(n)) for n in range(VERY_LONG + 9)], None, "on one piece", id="a loop"),
        pytest.param([None] * (VERY_LONG - 9), None, None, id="no /proc"),
        pytest.param([None] * (VERY_LONG + 9), None, "on one piece", id="no /proc, and silence"),
    ],
)
def test_who_is_stuck(lives: list[tuple[str, float] | None], messages: list[int] | None, fault: str | None) -> None:
    """Silence without work is a fault, and work without end; waiting for a disk or a core is not."""
    found = watch(lives, messages)
    assert found is None if fault is None else found is not None and fault in found


class _Sleeper:
    """Sleeps for ever."""

    pid = os.getpid()
    messages = 0
    reason: str | None = None

    def kill_stuck(self, reason: str, *, stopped: bool) -> None:
        self.reason = reason


@pytest.mark.parametrize("asleep", [False, True])
def test_time_in_which_nobody_looked_does_not_count(asleep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was asleep, or a group that was stopped and goes on, wakes up without an accusation."""
    monkeypatch.setattr(pool, "process_life", lambda pid: ("S", 1.0))
    clock, sleeper = FakeClock(), _Sleeper()
    dog = Watchdog(lambda: [sleeper], Observer(), clock)  # type: ignore[list-item]
    for _ in range(20):
        clock.seconds += 8 * 3600 if asleep else 1
        dog.look()
    assert sleeper.reason is None
    for _ in range(0 if asleep else LONG):
        clock.seconds += 1
        dog.look()
    assert (sleeper.reason is None) == asleep


@pytest.fixture
def source(tmp_path: Path) -> Parts:
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    return runs.job_of(tmp_path / "out", path, batch_bytes=1024).source


def accuse_only(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """At once, but only those whom the kernel really sees in this state: a load must not decide a test."""

    def life(pid: int) -> tuple[str, float]:
        seen = process_life(pid)
        return ("S", 0.0) if seen is not None and seen[0] == state else ("R", 0.0)

    monkeypatch.setattr(pool, "process_life", life)
    monkeypatch.setattr(pool, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(pool, "WATCH_EVERY_SECONDS", 0.05)


@pytest.mark.full
@pytest.mark.promise("a worker's death never hangs the run")
def test_a_stopped_worker_is_replaced(source: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP to them, and nobody ever says SIGCONT: the run goes on with the same tokens."""
    accuse_only(monkeypatch, "T")
    spec = runs.spec_of(source)
    blocks, listener = [], Listener()
    with LocalExecutor(spec, 2, 10**6, MemoryGuard(2**40), observer=listener) as executor:
        for number, block in enumerate(collecting.encode(executor, source.batches(runs.START))):
            blocks.append(block)
            if number in (3, 9):
                for worker in executor._workers:  # one of them may have nothing to do any more
                    os.kill(worker.pid, signal.SIGSTOP)
    assert np.concatenate([block.array for block in blocks]).tolist() == EXPECTED
    told = listener.texts("worker")
    assert told
    assert all("did nothing for" in text and "was killed; replaced" in text for text in told)


@pytest.mark.full(but=["True"])
@pytest.mark.promise("a worker's death never hangs the run")
@pytest.mark.parametrize("skip", [False, True])
def test_a_reader_that_sleeps_for_ever_ends_the_run(
    tmp_path: Path, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place. Not even with `--on-bad-file skip` is it left out: a disk may have been away."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:300], 10)
    settings = {"on_bad_file": "skip"} if skip else {}
    plain = runs.job_of(tmp_path / "out", path, batch_bytes=2**20, **settings).source
    source = faulty.with_format(plain, faulty.SleepingReader)
    asleep = tmp_path / "asleep"
    monkeypatch.setenv("TEST_ASLEEP", str(asleep))

    def life(pid: int) -> tuple[str, float]:
        return ("S" if (asleep / str(pid)).exists() else "R"), 0.0

    monkeypatch.setattr(pool, "process_life", life)
    monkeypatch.setattr(pool, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(pool, "WATCH_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    spec = runs.spec_of(source)
    with (
        LocalExecutor(spec, 1, 10**8, MemoryGuard(2**40)) as executor,
        pytest.raises(WorkerError, match=r"a\.parquet: 2 workers died while reading the batch .* did nothing"),
    ):
        list(collecting.encode(executor, source.batches(runs.START)))
