"""`--priority`: whether a build leaves cores and disks to other programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import runs

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has idle input and output")
LOWEST, OWN = (19, "idle"), (0, "none")
CASES = [([], LOWEST), (["--priority", "background"], LOWEST), (["--priority", "normal"], OWN)]


def plain_environment() -> dict[str, str]:
    """Without what keeps every process of these tests from being nice."""
    package = str(Path(runs.__file__).parent.parent.parent)
    return {**os.environ, "PYTHONPATH": package}


def priority_of(pid: int) -> tuple[int, str]:
    """Niceness, and the class for disks."""
    shown = subprocess.run(["ionice", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return os.getpriority(os.PRIO_PROCESS, pid), shown.partition(":")[0].strip()


@ONLY_LINUX
@pytest.mark.parametrize(("flags", "expected"), CASES, ids=["default", "background", "normal"])
def test_parent_and_workers_have_the_priority(
    tmp_path: Path, flags: list[str], expected: tuple[int, str]
) -> None:
    """While a build waits for more of its standard input, all its processes have what the flag says."""
    out = tmp_path / "out"
    words = runs.command("build", "-", "--workers", "1", "--out", out, "--separator", "line", *flags)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=plain_environment()
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"A line of text with some words.\n" * 500_000)
        process.stdin.flush()
        until = time.monotonic() + 60
        while not any(path.stat().st_size for path in out.rglob("*.tmp")) and time.monotonic() < until:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        found = {priority_of(pid) for pid in (process.pid, *(child.pid for child in children))}
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert children
    assert found == {expected}


@ONLY_LINUX
@pytest.mark.parametrize(("priority", "expected"), [("background", LOWEST), ("normal", OWN)])
def test_a_process_alone(priority: str, expected: tuple[int, str]) -> None:
    """A worker sets its own as well, wherever it was started."""
    code = (
        "import sys; from fineweb_shards.system import machine;"
        "machine.apply_priority(sys.argv[1]); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, priority],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        assert priority_of(process.pid) == expected
        process.communicate()
