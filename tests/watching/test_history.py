"""The history of a run: small after three days, whole after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fineweb_shards.events import Event
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.watching import run_files
from fineweb_shards.watching.run_files import (
    MAXIMUM_MARKS,
    MAXIMUM_RUNS,
    WAIT,
    History,
    RunRecord,
    Snapshot,
    State,
    load_history,
)


def seen(tokens: int, memory_bytes: int, fetched_bytes: int = 0, waited_seconds: float = 0.0) -> Snapshot:
    return Snapshot(
        State.ENCODING, "", tokens=tokens, memory_bytes=memory_bytes,
        fetched_bytes=fetched_bytes, waited_seconds=waited_seconds,
    )  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [1_000_000.0]
    monkeypatch.setattr(run_files.time, "time", lambda: now[0])
    return now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK_FOLDER).mkdir()
    return tmp_path


def test_a_resume_goes_on_with_the_same_history(clock: list[float], folder: Path) -> None:
    """Under another run number; a wait left open by a crash ends where that run was last heard of."""
    first = History()
    first.begin_run()
    first.update(seen(0, 1))
    clock[0] += 10
    first.update(seen(100, 1))
    first.begin_wait("network", "waiting")
    first.save(folder)
    clock[0] += 3600
    second = load_history(folder)
    second.begin_run()
    second.update(seen(50, 1))
    assert [run.number for run in second.runs] == [1, 2]
    assert [(mark.kind, mark.end) for mark in second.marks] == [(WAIT, 1_000_010.0)]


def test_waits_and_faults_are_marked(clock: list[float]) -> None:
    """Faults with their text, waits with their length, nothing else; and never too many."""
    kept = History()
    kept.note(Event("shard", "finished"))
    kept.note(Event("worker", "worker 7 was killed"))
    kept.begin_wait("network", "waiting for the network")
    clock[0] += 60
    kept.end_wait("network")
    kept.end_wait("disk")
    worker, wait = kept.marks
    assert worker.text == "worker 7 was killed"
    assert wait.end == wait.time + 60
    for _ in range(2 * MAXIMUM_MARKS):
        kept.note(Event("note", "again"))
    assert len(kept.marks) == MAXIMUM_MARKS


def test_runs_are_kept_with_their_waits(clock: list[float], folder: Path) -> None:
    """How each ended, what it made, how often and how long it waited; one that was killed says nothing, and its open
    wait ended where it was last heard of."""
    first = History()
    first.begin_run(0)
    clock[0] += 100
    first.update(seen(500, 7, fetched_bytes=30, waited_seconds=20.0))
    first.begin_wait("network", "waiting")
    clock[0] += 20
    first.end_wait("network")
    first.begin_wait("network", "again")
    clock[0] += 5
    first.update(seen(500, 7, fetched_bytes=40, waited_seconds=25.0))
    first.save(folder)
    clock[0] += 3600
    second = load_history(folder)
    second.begin_run(300)
    second.begin_wait("disk", "full")
    clock[0] += 60
    second.end_run("stopped, exit code 5: full")
    second.save(folder)
    killed, stopped = load_history(folder).runs
    assert (killed.number, killed.ending, killed.new_tokens, killed.fetched_bytes) == (1, "", 500, 40)
    assert (killed.seconds, killed.work_seconds) == (125, 100)
    assert killed.describe_waits() == "25 s for the network, 2 times"
    assert (stopped.number, stopped.ending) == (2, "stopped, exit code 5: full")
    assert stopped.describe_waits() == "60 s for the disk, once"


def test_runs_stay_few(clock: list[float]) -> None:
    """A service that is started again every minute does not fill the disk."""
    kept = History()
    for _ in range(MAXIMUM_RUNS + 50):
        kept.begin_run()
    assert [run.number for run in kept.runs] == list(range(51, MAXIMUM_RUNS + 51))


def test_a_history_of_an_older_version_is_read(folder: Path) -> None:
    """Up to 1.0 it had points for charts, and a budget for each run; before, no runs."""
    values: dict[str, object] = {"interval_seconds": 1.0, "points": [[1.0, 1, 2, 3]], "marks": []}
    path = folder / WORK_FOLDER / run_files.HISTORY_NAME
    path.write_text(json.dumps(values))
    assert load_history(folder).runs == []
    run = {"number": 3, "begin": 1.0, "end": 9.0, "first_tokens": 0, "last_tokens": 2, "budget_bytes": 4_000}
    path.write_text(json.dumps({**values, "runs": [run]}))
    old = load_history(folder)
    assert old.runs == [RunRecord(3, 1.0, 9.0, 0, 2)]
    old.begin_run()
    assert old.runs[1].number == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"marks": 5}', '{"runs": [[1]], "marks": []}'])
def test_a_damaged_history_is_begun_anew(folder: Path, text: str) -> None:
    """It is an account, not a checkpoint."""
    (folder / WORK_FOLDER / run_files.HISTORY_NAME).write_text(text)
    assert load_history(folder).runs == []
