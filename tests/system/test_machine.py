"""What the machine says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fineweb_shards.system import machine

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


def test_files_in_the_cache_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group that has read a large file is not full: both versions count the page cache as used."""
    monkeypatch.setattr(machine, "_cgroup_folders", lambda controller: [tmp_path])
    (tmp_path / "memory.stat").write_text(f"anon {20 * MIB}\ninactive_file {50 * MIB}\nactive_file {10 * MIB}\n")
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{80 * MIB}\n")
    assert machine.available_memory_bytes() == 80 * MIB
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory.limit_in_bytes").write_text(f"{200 * MIB}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{80 * MIB}\n")
    (tmp_path / "memory.stat").write_text(
        f"inactive_file 0\nactive_file 0\ntotal_inactive_file {30 * MIB}\ntotal_active_file 0\n"
    )
    assert machine.available_memory_bytes() == 150 * MIB


def test_pressure_is_read_where_the_kernel_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the control group too; no file, no pressure."""
    monkeypatch.setattr(machine, "_cgroup_folders", lambda controller: [tmp_path])
    before = machine.memory_stall_percent()
    (tmp_path / "memory.pressure").write_text(
        "some avg10=80.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=55.50 avg60=0.00 avg300=0.00 total=1\n"
    )
    assert machine.memory_stall_percent() == max(before, 55.5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_process_can_be_weighed() -> None:
    """This one holds some memory, one that does not exist holds none that can be told."""
    assert (machine.private_memory_bytes(os.getpid()) or 0) > 10 * MIB
    assert machine.private_memory_bytes(2**30) is None


@pytest.mark.promise("short memory pauses the run")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has idle input and output")
def test_manners() -> None:
    """Lowest priority for cores, idle for the disk, first for the OOM killer: what a worker does."""
    code = (
        "import os; from fineweb_shards.system import machine;"
        "machine.apply_priority('background'); machine.offer_to_oom_killer();"
        "print(os.nice(0), open('/proc/self/oom_score_adj').read().strip(), flush=True);"
        "os.execvp('ionice', ['ionice', '-p', str(os.getpid())])"
    )
    ours = ("PYTHONUNBUFFERED", "PYTHONPATH")  # with the latter no process becomes nice in these tests
    plain = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=False)
    assert done.stdout.split() == ["19", "800", "idle"]


@pytest.mark.parametrize("exists", [True, False])
def test_without_proc_psutil_tells(monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    """macOS: memory and processor time of a process that exists, nothing of one that does not."""
    pid = os.getpid() if exists else 2**30
    proc = (machine.private_memory_bytes(pid), machine.process_life(pid))
    monkeypatch.setattr(machine, "_read_lines", lambda path: [])
    monkeypatch.setattr(sys, "platform", "darwin")
    size, life = machine.private_memory_bytes(pid), machine.process_life(pid)
    if not exists:
        assert (size, life) == (None, None)
        return
    assert size is not None
    assert life is not None
    assert size > 10 * MIB
    if proc[0] and proc[1]:  # Linux: about the same, but without files, such as libraries, that nobody else has open
        assert proc[0] - 10 * MIB <= size <= proc[0] + 100 * MIB
        assert life[1] >= proc[1][1] - 0.02
    assert life[0] == ""


def test_the_machine_has_as_much_memory_as_psutil_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Total and available, wherever this runs: no guess."""
    monkeypatch.setattr(machine, "_read_lines", lambda path: [])
    monkeypatch.setattr(sys, "platform", "darwin")
    (limit,) = machine.memory_limits()
    assert limit.total_bytes == psutil.virtual_memory().total
    assert 0 < limit.available_bytes <= limit.total_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil is installed with the package")
def test_linux_needs_no_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not installed there: of a process that has ended, or without /proc, nothing is known."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert (machine.private_memory_bytes(2**30), machine.process_life(2**30)) == (None, None)
    assert machine.available_memory_bytes() > 0
    monkeypatch.setattr(machine, "_read_lines", lambda path: [])
    assert (machine.private_memory_bytes(os.getpid()), machine.process_life(os.getpid())) == (None, None)
    assert machine.available_memory_bytes() > 0
