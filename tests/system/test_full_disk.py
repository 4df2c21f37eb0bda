"""A full disk is waited for, on a fake clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from fineweb_shards.errors import DiskFullError, OutputError
from fineweb_shards.system import retry
from fineweb_shards.system.retry import Disk
from tests.support.doubles import FakeClock, Listener


def full_until(seconds: float, clock: FakeClock) -> str:
    if clock.now() < seconds:
        raise DiskFullError("shard: no space left on the disk.")
    return "written"


def test_space_that_appears_is_used(tmp_path: Path) -> None:
    """The wait is told once with its beginning, and its end."""
    clock, listener = FakeClock(), Listener()
    disk = Disk(tmp_path, 3600, listener, clock)
    assert disk.attempt(lambda: full_until(600, clock)) == "written"
    assert listener.waits[0] == (
        "disk",
        "waiting for the disk since 02:13 (shard: no space left on the disk), giving up at 03:13",
    )
    assert listener.waits[-1] == ("disk", None)
    assert max(clock.waits) <= 10


def test_a_disk_that_stays_full_ends_the_run_resumably(tmp_path: Path) -> None:
    """After the limit, with its own exit code and what to do."""
    clock = FakeClock()
    disk = Disk(tmp_path, 3600, Listener(), clock)
    with pytest.raises(DiskFullError, match="after 60 min, since 02:13") as error:
        disk.attempt(lambda: full_until(1e9, clock))
    assert error.value.exit_code == 5
    assert "every finished shard is kept" in error.value.hint


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    """A disk that fails does not get better by waiting."""
    clock = FakeClock()

    def failing() -> None:
        raise OutputError("shard: Input/output error.")

    with pytest.raises(OutputError, match="Input/output"):
        Disk(tmp_path, 3600, Listener(), clock).attempt(failing)
    assert clock.waits == []


def test_room_for_a_whole_shard_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says how much is free and how much is needed."""
    clock, listener = FakeClock(), Listener()
    monkeypatch.setattr(retry, "free_disk_bytes", lambda folder: 10**6 * (1 + 200 * (clock.now() > 60)))
    Disk(tmp_path, 3600, listener, clock).wait_for(200_000_000)
    assert "the next shard needs 200.0 MB, but only 1.0 MB are free: 199.0 MB are missing" in str(listener.waits[0][1])
    assert 60 < clock.now() < 75
