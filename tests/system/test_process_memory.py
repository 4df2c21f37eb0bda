"""The memory of processes: exact now and then, and in between by what has grown."""

from __future__ import annotations

import os

import pytest

from fineweb_shards.system.machine import process_memory_bytes
from fineweb_shards.system.memory_guard import ProcessMemory
from tests.support.doubles import FakeClock

MIB = 2**20


def test_growth_is_seen_at_once_and_the_rest_now_and_then() -> None:
    """Private memory counts in every measurement; what is shared is asked for after a second, then seldom."""
    clock, asked = FakeClock(), []
    private, shared = 10 * MIB, 5 * MIB

    def measure_exactly(pid: int) -> int:
        asked.append(pid)
        return private + shared

    memory = ProcessMemory(measure_exactly, lambda _: private, clock)
    assert memory.measure(7) == 10 * MIB  # just started
    clock.seconds += 1
    assert memory.measure(7) == 15 * MIB
    private, shared = 90 * MIB, 8 * MIB
    clock.seconds += 1
    assert memory.measure(7) == 95 * MIB
    for _ in range(58):
        clock.seconds += 1
        memory.measure(7)
    assert memory.measure(7) == 98 * MIB
    assert 3 <= len(asked) <= 6


def test_a_process_that_has_ended_has_none() -> None:
    """... and its number may become another process's, of which nothing is known."""
    sizes: dict[int, int] = {7: 10 * MIB}
    clock = FakeClock()
    memory = ProcessMemory(lambda _: 30 * MIB, sizes.get, clock)
    memory.measure(7)
    clock.seconds += 1
    assert memory.measure(7) == 30 * MIB
    del sizes[7]
    assert memory.measure(7) is None
    sizes[7] = 1 * MIB
    assert memory.measure(7) == 1 * MIB


def test_it_is_what_the_kernel_says() -> None:
    """Of this process, after many megabytes more."""
    clock = FakeClock()
    memory = ProcessMemory(clock=clock)
    assert memory.measure(os.getpid())
    clock.seconds += 1
    before = memory.measure(os.getpid()) or 0
    held = b"x" * (64 * MIB)
    assert memory.measure(os.getpid()) == pytest.approx(process_memory_bytes(os.getpid()), abs=4 * MIB)
    assert (memory.measure(os.getpid()) or 0) - before == pytest.approx(len(held), abs=4 * MIB)
