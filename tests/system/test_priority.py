"""`--priority`: whether a build leaves cores and disks to other programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support import runs

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has idle input and output")
PATIENCE_SECONDS = 120
# With `normal`, that of whoever starts it: these tests may have been started with `nice`.
CASES = [([], "idle"), (["--priority", "background"], "idle"), (["--priority", "normal"], "inherited")]


def disk_class(pid: int) -> str:
    """The class for disks: idle, or none if it was never set."""
    shown = subprocess.run(["ionice", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return shown.partition(":")[0].strip()


@pytest.mark.full
@ONLY_LINUX
@pytest.mark.parametrize(("flags", "expected"), CASES, ids=["default", "background", "normal"])
def test_parent_and_workers_have_the_priority(tmp_path: Path, flags: list[str], expected: str) -> None:
    """While a build waits for more of its standard input, all its processes have what the flag says. Shown by the class
    for disks: niceness is switched off in these tests (support/startup)."""
    out = tmp_path / "out"
    settings = ["--workers", "1", "--batch-bytes", "64KiB", "--shard-tokens", "100M"]
    words = runs.command("build", "-", "--out", out, *settings, *flags)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(b"A line of text with some words.\n\n" * 100_000)
        process.stdin.flush()
        until = time.monotonic() + PATIENCE_SECONDS
        while not any(path.stat().st_size for path in out.rglob("*.tmp")) and time.monotonic() < until:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        found = {disk_class(pid) for pid in (process.pid, *(child.pid for child in children))}
        process.stdin.close()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert children
    assert found == {disk_class(os.getpid()) if expected == "inherited" else expected}


@ONLY_LINUX
@pytest.mark.parametrize("priority", ["background", "normal"])
def test_a_process_alone(priority: str) -> None:
    """Niceness and the class for disks, in a process that may be nice."""
    inherited = [os.getpriority(os.PRIO_PROCESS, 0), disk_class(os.getpid())]
    expected = [19, "idle"] if priority == "background" else inherited
    code = (
        "import sys; from fineweb_shards.system import machine;"
        "machine.apply_priority(sys.argv[1]); print(flush=True); sys.stdin.read()"
    )
    package = str(Path(runs.__file__).parent.parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", code, priority], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": package},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        assert [os.getpriority(os.PRIO_PROCESS, process.pid), disk_class(process.pid)] == expected
        process.communicate()
