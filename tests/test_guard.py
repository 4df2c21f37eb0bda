"""Cores, memory and the budget."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineweb_shards import guard
from fineweb_shards.errors import UsageError

MIB = 2**20


def test_budget_holds_what_it_promises() -> None:
    """Parent, workers and the window with its copies fit into the memory."""
    for memory in (600 * MIB, 1024 * MIB, 4096 * MIB):
        budget = guard.plan_budget(2, memory, 4 * MIB)
        used = guard.PARENT_BYTES + budget.workers * guard.WORKER_BYTES + 4 * budget.window_bytes
        assert used <= memory
        assert budget.window_bytes >= 8 * MIB


def test_a_small_budget_means_fewer_workers() -> None:
    """Eight workers don't fit into a gigabyte."""
    assert guard.plan_budget(8, 1024 * MIB, 4 * MIB).workers == 3


def test_too_small_a_budget_is_told() -> None:
    """With what one worker needs, and how to get there."""
    with pytest.raises(UsageError, match="100 MiB is too small"):
        guard.plan_budget(1, 100 * MIB, 4 * MIB)


def test_default_budget_is_a_quarter_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 4 GiB."""
    monkeypatch.setattr(guard, "available_memory_bytes", lambda: 8 * 1024 * MIB)
    assert guard.plan_budget(1, None, 4 * MIB).memory_bytes == 2 * 1024 * MIB
    monkeypatch.setattr(guard, "available_memory_bytes", lambda: 64 * 1024 * MIB)
    assert guard.plan_budget(1, None, 4 * MIB).memory_bytes == 4 * 1024 * MIB


def test_control_group_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of 1.5 cores and a memory limit, version 2 and version 1 files alike."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{40 * MIB}\n")
    monkeypatch.setattr(guard, "_cgroup_folders", lambda controller: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert guard.usable_cores() == 1
    assert guard.available_memory_bytes() == 60 * MIB
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert guard.usable_cores() == 3


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """Counted where it will be."""
    assert guard.free_disk_bytes(tmp_path / "a" / "b") > 0
