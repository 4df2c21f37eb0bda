"""How long a run took, and all runs together, are the same figure, whatever they are shown by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run import build as build_module
from fineweb_shards.run.job import Job
from fineweb_shards.watching.progress import Progress
from tests.support import inline
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

PLAN_SECONDS = 100.0


@pytest.fixture
def long_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is as one that began so much earlier, because planning took so long."""
    announce = build_module.announce_plan

    def announce_late(job: Job, manifest: Manifest, progress: Progress) -> Manifest:
        progress.began -= PLAN_SECONDS
        return announce(job, manifest, progress)

    monkeypatch.setattr(build_module, "announce_plan", announce_late)


def test_all_runs_together_are_the_sum_of_the_runs(long_plans: None, tmp_path: Path) -> None:
    """The manifest counts a run from its start, with its plan and the start of workers, as the run itself does."""
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(60, seed=7))
    words = ("build", source, "--out", tmp_path / "out")
    seconds = []
    for limit in ("3k", "6k"):
        done = inline.run_command(*words, "--shard-tokens", "1000", "--max-tokens", limit, "--json")
        seconds.append(json.loads(done.stdout.splitlines()[-1])["seconds"])
        effort = json.loads((tmp_path / "out" / "manifest.json").read_text())["effort"]
        assert min(seconds) >= PLAN_SECONDS
        assert effort["seconds"] == pytest.approx(sum(seconds), abs=PLAN_SECONDS / 2)
    done = inline.run_command(*words, "--shard-tokens", "1000", "--max-tokens", "9k")
    assert "All runs together: 5 min of work." in done.stdout
    assert "All runs" not in inline.run_command(*words, "--shard-tokens", "1000", "--max-tokens", "9k").stdout


def test_the_first_run_has_no_sum(long_plans: None, tmp_path: Path) -> None:
    """It would say the same twice."""
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(60, seed=7))
    done = inline.run_command("build", source, "--out", tmp_path / "out", "--shard-tokens", "1000")
    assert "Done and verified in " in done.stdout
    assert "All runs" not in done.stdout
