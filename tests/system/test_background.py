"""Background work: results, errors, and a process that ends all the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from fineweb_shards.system.background import in_background, map_in_background


def test_results_and_errors_arrive() -> None:
    """In the future, where they are asked for."""
    assert in_background(lambda: 5).result() == 5
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0).result()


def test_many_results_come_in_their_order() -> None:
    """However long each takes; an error where its result would be."""

    def slow(number: int) -> int:
        time.sleep(0.02 * (number % 3))
        return 12 // number

    assert list(map_in_background(slow, range(1, 13), 4)) == [12 // number for number in range(1, 13)]
    assert list(map_in_background(slow, [], 4)) == []
    results = map_in_background(slow, [3, 0, 2], 2)
    assert next(results) == 4
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_what_nobody_wants_is_not_begun() -> None:
    """Whoever stops early does not wait for what is under way."""
    begun: list[int] = []
    never = threading.Event()

    def hang(number: int) -> int:
        begun.append(number)
        if number:
            never.wait()
        return number

    results = map_in_background(hang, range(100), 2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined] # it is a generator
    never.set()
    time.sleep(0.1)
    assert len(begun) <= 4


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """Ctrl-C must not wait for a download."""
    code = "import time; from fineweb_shards.system.background import in_background as go; go(lambda: time.sleep(600))"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
