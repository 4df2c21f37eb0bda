"""What this machine allows: cores, memory, disk, and good manners towards whoever sits at it.

Does not watch a run; it divides the memory budget before the start.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.errors import UsageError

# Allowances. Measured together: two workers, the parent and what is in flight peak at 730 MB (PSS).
WORKER_BYTES = 240 * 2**20
PARENT_BYTES = 160 * 2**20
# A batch costs its text as bytes, as str, its tokens twice on the way, and once in the parent.
_COPIES = 4
MAXIMUM_WINDOW_BYTES = 192 * 2**20
MAXIMUM_BUDGET_BYTES = 4 * 2**30
BUDGET_SHARE = 4  # of what is available, one part in so many


@dataclass(frozen=True, slots=True)
class Budget:
    """How a run uses the machine."""

    workers: int
    memory_bytes: int
    window_bytes: int  # of text in flight


def plan_budget(workers: int | None, max_memory: int | None, batch_bytes: int) -> Budget:
    """Divide the memory; fewer workers where it does not hold all of them."""
    memory = max_memory or min(available_memory_bytes() // BUDGET_SHARE, MAXIMUM_BUDGET_BYTES)
    wanted = workers or usable_cores()
    least_window = 2 * batch_bytes
    room = memory - PARENT_BYTES - least_window * _COPIES
    fitting = min(wanted, room // WORKER_BYTES)
    if fitting < 1:
        needed = PARENT_BYTES + WORKER_BYTES + least_window * _COPIES
        raise UsageError(
            f"A memory budget of {memory // 2**20} MiB is too small: one worker needs "
            f"{-(-needed // 2**20)} MiB.",
            "Give more with --max-memory, close other programs, or use a smaller --batch-bytes.",
        )
    window = (memory - PARENT_BYTES - fitting * WORKER_BYTES) // _COPIES
    return Budget(fitting, memory, min(window, max(MAXIMUM_WINDOW_BYTES, least_window)))


def usable_cores() -> int:
    """The cores this process may use, by affinity and by the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, min(cores, int(quota))) if quota else cores


def available_memory_bytes() -> int:
    """Memory that can be had without swapping, inside the control group's limit."""
    available = _meminfo("MemAvailable")
    if available is None:  # not Linux: half of what is built in is a cautious guess
        available = _physical_memory_bytes() // 2
    limits = [limit - used for limit, used in _cgroup_memory()]
    return max(0, min([available, *limits]))


def free_disk_bytes(folder: Path) -> int:
    """Free space where `folder` is or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def be_nice() -> None:
    """Leave the machine to the person who uses it: lowest priority, first for the OOM killer."""
    if hasattr(os, "nice"):
        os.nice(19)
    try:
        Path("/proc/self/oom_score_adj").write_text("800")
    except OSError:
        return  # not Linux, or not allowed: a courtesy, not a need


def _physical_memory_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 2**30  # Windows tells only through ctypes; --max-memory says it better


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_folders(controller: str) -> list[Path]:
    """This process's control group and all above it; limits of any of them count."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controller
        else:
            continue
        group = root / path.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return folders


def _cgroup_cores() -> float | None:
    cores = []
    for folder in _cgroup_folders("cpu"):
        if (two := _read_words(folder / "cpu.max")) and two[0] != "max":
            cores.append(int(two[0]) / int(two[1]))
        quota, period = (
            _read_words(folder / "cpu.cfs_quota_us"),
            _read_words(folder / "cpu.cfs_period_us"),
        )
        if quota and period and int(quota[0]) > 0:
            cores.append(int(quota[0]) / int(period[0]))
    return min(cores, default=None)


def _cgroup_memory() -> list[tuple[int, int]]:
    found = []
    for folder in _cgroup_folders("memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read_words(folder / limit_name), _read_words(folder / used_name)
            if limit and used and limit[0] != "max":
                found.append((int(limit[0]), int(used[0])))
    return found


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
