"""Background work: results, errors, and a process that ends all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fineweb_shards.system.background import in_background


def test_results_and_errors_arrive() -> None:
    """In the future, where they are asked for."""
    assert in_background(lambda: 5).result() == 5
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0).result()


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """Ctrl-C must not wait for a download."""
    code = (
        "import time; from fineweb_shards.system.background import in_background as go; "
        "go(lambda: time.sleep(600))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
