"""What the machine says of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineweb_shards import machine

MIB = 2**20


def test_control_group_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of 1.5 cores and a memory limit, version 2 and version 1 files alike."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{40 * MIB}\n")
    monkeypatch.setattr(machine, "_cgroup_folders", lambda controller: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert machine.usable_cores() == 1
    assert machine.available_memory_bytes() == 60 * MIB
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.usable_cores() == 3


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """Counted where it will be."""
    assert machine.free_disk_bytes(tmp_path / "a" / "b") > 0
