"""Measure this machine's cores, memory, memory pressure and disk, and lower this process's priority.

On Linux files under /proc and /sys have all figures. psutil is used only on macOS: loading it takes 40 to 60 ms,
measuring a process takes twice the processor time, and it lacks control groups, pressure and OOM kills. Unknown
figures are None or 0, as if there were no shortage.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fineweb_shards.errors import UsageError
from fineweb_shards.units import show_bytes

# Measured on two cores: 600 MB is too little for the libraries and GPT-2, 800 MB is enough.
_ADDRESS_SPACE_BYTES = 10**9
# ioprio_set(2) has no name in Python; its number depends on the processor.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_OTHER_FILES = 100  # more than a process ever has open otherwise
PRIORITIES = ("background", "normal")  # the values of `--priority`, the default first

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory limit of the machine or of a control group, and how much of it is available."""

    name: str
    available_bytes: int  # without swapping
    total_bytes: int


def usable_cores() -> int:
    """Return the number of cores this process may use, given its affinity and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders("cpu"):
        version_1 = [*_read_words(folder / "cpu.cfs_quota_us"), *_read_words(folder / "cpu.cfs_period_us")]
        for quota in (_read_words(folder / "cpu.max"), version_1):
            if len(quota) == 2 and quota[0] not in ("max", "-1"):
                cores = min(cores, int(quota[0]) // int(quota[1]))
    return max(1, cores)


def memory_limits() -> list[MemoryLimit]:
    """Return the limit of the machine, and the lower limits of all control groups (version 2 or 1) of this process."""
    figures = dict(line.split()[:2] for line in _read_lines(Path("/proc/meminfo")))
    if "MemAvailable:" in figures:
        available, total = (int(figures[name]) * 1024 for name in ("MemAvailable:", "MemTotal:"))
    elif sys.platform == "linux":  # a sandbox without /proc: half of the total is a cautious guess
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        available = total // 2
    else:
        import psutil

        memory = psutil.virtual_memory()
        available, total = memory.available, memory.total
    limits = [MemoryLimit("the machine", available, total)]
    for folder in _cgroup_folders("memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read_words(folder / limit_name), _read_words(folder / used_name)
            if limit and used and limit[0] != "max" and int(limit[0]) < total:
                # The page cache counts as used, but is freed before anything else.
                stat = dict(line.split()[:2] for line in _read_lines(folder / "memory.stat"))
                names = ("inactive_file", "active_file")  # in version 1 `total_` includes children
                cached = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in names)
                taken = max(0, int(used[0]) - cached)
                limits.append(MemoryLimit("the control group", int(limit[0]) - taken, int(limit[0])))
    return limits


def check_address_space() -> None:
    """Raise UsageError if the limit on address space (`ulimit -v`) is too low for encoding. Call this before importing
    large libraries, which would fail without naming the cause, or abort."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE_BYTES:
        raise UsageError(
            f"Each process may have {show_bytes(limit)} of address space (`ulimit -v`), but this one has to reserve "
            f"{show_bytes(_ADDRESS_SPACE_BYTES)}, of which it uses only a part.",
            "Run `ulimit -v unlimited` first, and bound the memory in use with --max-memory.",
        )


def available_memory_bytes() -> int:
    """Return the memory available without swapping, within all limits."""
    return max(0, min(limit.available_bytes for limit in memory_limits()))


def memory_stall_percent() -> float:
    """Return the share of the last ten seconds in which all processes stalled for memory; 0 if unknown."""
    stalls = [0.0]
    for path in (Path("/proc/pressure/memory"), *(f / "memory.pressure" for f in _cgroup_folders("memory"))):
        for line in _read_lines(path):
            if line.startswith("full avg10="):
                stalls.append(float(line.split()[1].removeprefix("avg10=")))
    return max(stalls)


def free_disk_bytes(folder: Path) -> int:
    """Return the free space on the disk where `folder` is or will be."""
    return shutil.disk_usage(_existing(folder)).free


def disk_of(folder: Path) -> int:
    """Return an id of the disk where `folder` is or will be."""
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def apply_priority(priority: str) -> None:
    """With `background`, give this process the lowest priority for cores and disks; `normal` keeps its priority."""
    if priority != "background":
        return
    os.nice(19)
    number = _IOPRIO_SET.get(platform.machine()) if sys.platform == "linux" else None
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # this process, the class "idle"


@contextlib.contextmanager
def environment(values: Mapping[str, str], remove: Iterable[str] = ()) -> Iterator[None]:
    """Set variables temporarily, except those already set; also remove those in `remove` that a library sets."""
    unset = [name for name in (*values, *remove) if name not in os.environ]
    os.environ.update({name: values[name] for name in unset if name in values})
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


def offer_to_oom_killer() -> None:
    """Make this process the kernel's first choice when memory runs out: a killed worker is replaced."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/oom_score_adj").write_text("800")


def private_memory_bytes(pid: int) -> int | None:
    """Return a process's memory without files and shared memory; None if unknown. Fast on Linux."""
    for line in _read_lines(Path(f"/proc/{pid}/statm")):
        resident, shared = map(int, line.split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    # On Linux the process has ended.
    return _ask_psutil(lambda process: int(process.memory_full_info().uss), pid)


def own_shared_bytes() -> int:
    """Return the memory of this process that is files, such as libraries, or shared memory; 0 if unknown."""
    pages = [int(line.split()[2]) for line in _read_lines(Path("/proc/self/statm"))]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def own_memory_bytes() -> int:
    return private_memory_bytes(os.getpid()) or 0


def process_life(pid: int) -> tuple[str, float] | None:
    """Return a process's state (`R` runs, `S` sleeps, `D` waits for a disk, `T` is stopped …; empty on macOS) and the
    processor time of all its threads in seconds; None if unknown."""
    for line in _read_lines(Path(f"/proc/{pid}/stat")):
        fields = line.rpartition(")")[2].split()  # the name before it may contain spaces
        ticks = int(fields[11]) + int(fields[12])
        return fields[0], ticks / os.sysconf("SC_CLK_TCK")
    return _ask_psutil(lambda process: ("", sum(process.cpu_times()[:2])), pid)


def _ask_psutil(question: Callable[[Any], Result], pid: int) -> Result | None:
    """Ask psutil about a process on macOS; None on Linux, or if the process has ended."""
    if sys.platform == "linux":
        return None
    import psutil

    try:
        return question(psutil.Process(pid))
    except (psutil.Error, OSError):
        return None


def oom_kills() -> int:
    """Return the number of processes the kernel has killed for lack of memory since boot; 0 if unknown."""
    lines = _read_lines(Path("/proc/vmstat"))
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _cgroup_folders(controller: str) -> list[Path]:
    """Return the folders of this process's control group and all its parents, whose limits all apply."""
    folders = []
    for line in _read_lines(Path("/proc/self/cgroup")):
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


def _read_words(path: Path) -> list[str]:
    return " ".join(_read_lines(path)).split()


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a small kernel file; none if it does not exist. This happens for every MiB that a worker
    encodes, so it avoids the buffer and decoder of a text file, which take three times as long."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode().splitlines()
    except OSError:
        return []


@cache
def allow_files(count: int) -> int:
    """Raise this process's limit so that it can open `count` more files, or as many as allowed; return that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return count if soft == resource.RLIM_INFINITY else max(1, min(count, soft - _OTHER_FILES))
