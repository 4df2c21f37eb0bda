"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

import forked
import hypothesis

pytest_plugins = ["promises", "bucket_server"]

# Timing never decides a test, and every run tries the same examples (soak runs try new ones).
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("quick")

# Nothing of a developer's shell decides how long a test takes: modules are compiled once, not in every
# process, and no process leaves the cores to others, not even this one, after a build in it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for name in ("CI", "JPY_PARENT_PID", "COLAB_RELEASE_TAG"):  # they decide what is shown in a terminal
    os.environ.pop(name, None)
STARTUP = Path(__file__).parent / "support" / "startup"
os.environ["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
os.nice = lambda increment: 0

MEMORY_DISK = Path("/dev/shm")
NEEDED_BYTES = 2 * 10**9  # plenty: what a test has written is deleted when it has passed


def pytest_configure(config: pytest.Config) -> None:
    """Every day, what tests write is in memory, where there is room for it: test_token_limit.py alone syncs
    13,000 times, and on a busy disk waits for that most of its time. A soak is on the disk; TMPDIR names any
    other place."""
    forked.always_with_workers = config.getoption("soak")
    if config.getoption("soak") or "TMPDIR" in os.environ or not MEMORY_DISK.is_dir():
        return
    if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > NEEDED_BYTES:
        os.environ["TMPDIR"] = str(MEMORY_DISK)  # for the other processes of xdist, and for commands
        tempfile.tempdir = None


def pytest_unconfigure() -> None:
    forked.close()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on the disk, always: where memory is measured, files must not be part of it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


# Files whose tests take longest, the first ones most.
LONG = [
    "test_vocabularies.py",
    "test_poison.py",
    "test_hub.py",
    "test_same_bytes.py",
    "test_layouts.py",
    "test_kill_layouts.py",
    "test_transport.py",
    "test_quota.py",
    "test_local.py",
    "test_standard_streams.py",
    "test_hub_text.py",
    "test_kill.py",
    "test_deaths.py",
    "test_follow.py",
    "test_memory.py",
    "test_downloads.py",
    "test_unwritten.py",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each of several processes, which begin with equal parts of the list, begins with its share of the long
    files and ends with short tests: then none of them is waited for at the end."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes == 1:
        return
    files: dict[str, list[pytest.Item]] = {name: [] for name in LONG}
    short: list[pytest.Item] = []
    for item in items:
        files.get(item.path.name, short).append(item)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        part = [item for name in LONG[number::processes] for item in files[name]]
        room = (len(items) - len(ordered)) // (processes - number) - len(part)
        ordered += [*part, *short[: max(0, room)]]
        del short[: max(0, room)]
    items[:] = [*ordered, *short]
