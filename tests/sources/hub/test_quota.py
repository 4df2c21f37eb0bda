"""The hub's quotas: kept by all processes together, before they are hit. The stand-in counts the requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import runs
from tests.support.fourteen_files import (
    FILES,
    ROWS_PER_FILE,
    build_with_workers,
    expected_shards,
    refused,
    sample_repository,
)
from tests.support.standin_faults import ScriptedFaults, Status
from tests.support.standin_hub import StandInHub

# What an anonymous user has in five minutes, for a run with 10,164 row groups, which takes less than that.
ANONYMOUS_RESOLVES, REAL_ROW_GROUPS = 3000, 14 * 726
WINDOW_SECONDS = 300.0


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_the_anonymous_quota_is_no_limit(home: Path, tmp_path: Path) -> None:
    """Scaled to the size of the sample, it is neither reached nor waited for."""
    scaled = ANONYMOUS_RESOLVES * FILES * ROWS_PER_FILE // REAL_ROW_GROUPS
    quotas = {"resolver_quota": (scaled, WINDOW_SECONDS), "api_quota": (30, WINDOW_SECONDS)}
    with StandInHub([sample_repository()], cdn=True, **quotas) as hub:  # type: ignore[arg-type]
        done = build_with_workers(hub, home, tmp_path / "out", "--max-outage", "5s")
        assert done.returncode == 0, done.stderr
        assert refused(hub) == 0
        assert "waiting" not in done.stderr
    assert runs.shards_in(tmp_path / "out") == expected_shards()


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_a_quota_is_waited_for_before_it_is_hit(home: Path, tmp_path: Path) -> None:
    """Answers tell what is left: all processes together ask for no more than that."""
    with StandInHub([sample_repository()], cdn=True, resolver_quota=(6, 1.0), api_quota=(5, 1.0)) as hub:
        done = build_with_workers(hub, home, tmp_path / "out", "--workers", "3")
        assert done.returncode == 0, done.stderr
        assert refused(hub) == 0
    assert runs.shards_in(tmp_path / "out") == expected_shards()


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_after_a_429_all_wait_together(home: Path, tmp_path: Path) -> None:
    """Nobody asks again before the time that one was told, and then no more ask than are allowed."""
    workers, seconds = 3, 2
    limit = Status(429, rate_limit_reset_seconds=seconds)
    plan = ScriptedFaults([None] * 3 + [limit], on="resolve", path_contains=".parquet")
    with StandInHub([sample_repository()], [plan], cdn=True, resolver_quota=(8, 1.0)) as hub:
        done = build_with_workers(hub, home, tmp_path / "out", "--workers", str(workers))
        assert done.returncode == 0, done.stderr
        asked = [record for record in hub.requests if record.kind in ("api", "resolve")]
        told = [record for record in asked if record.status == 429]
        assert [record.fault for record in told] == [limit]
        meanwhile = [record for record in asked if told[0].at < record.at < told[0].at + seconds - 0.1]
        assert len(meanwhile) <= workers  # what was under way when the answer came
    assert runs.shards_in(tmp_path / "out") == expected_shards()
