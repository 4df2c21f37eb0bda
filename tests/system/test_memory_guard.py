"""The memory guard: when memory is short, and which worker has to go."""

from __future__ import annotations

import pytest

from fineweb_shards.system import memory_guard as guard
from fineweb_shards.system.machine import MemoryLimit
from fineweb_shards.system.memory_guard import Advice
from tests.support.doubles import FakeClock

MIB = 2**20


class Machine:
    """A machine with so much memory available, for a guard to look at."""

    def __init__(self, available: int, total: int = 16 * 1024 * MIB) -> None:
        self.available = available
        self.total = total
        self.stall = 0.0
        self.clock = FakeClock()
        self.sizes: dict[int, int] = {}
        self.shared = 0
        self.guard = guard.MemoryGuard(
            300 * MIB, self.read, lambda pid: self.sizes.get(pid), lambda: self.shared, self.clock
        )

    def read(self) -> guard.Reading:
        return [MemoryLimit("the machine", self.available, self.total)], self.stall

    def look(self, *workers: int, after: float = guard.LOOK_EVERY_SECONDS) -> Advice | None:
        self.clock.seconds += after
        return self.guard.look(workers)

    def is_short(self) -> bool:
        """After a look at one worker, which may stay."""
        assert self.look(1) is None
        return self.guard.shortage is not None


@pytest.mark.promise("short memory pauses the run")
def test_short_memory_pauses_until_there_is_clearly_more() -> None:
    """Below the threshold the run pauses; just above it it still does, or it would go to and fro."""
    machine = Machine(4096 * MIB)
    assert not machine.is_short()
    machine.available = 511 * MIB
    assert machine.is_short()
    assert machine.guard.shortage == "the machine has 535.8 MB of memory left"
    machine.available = 1000 * MIB
    assert machine.is_short()
    machine.available = 1025 * MIB
    assert not machine.is_short()
    assert machine.guard.shortage is None


def test_a_small_place_is_short_at_a_twentieth() -> None:
    """In a control group of 1 GiB there may never be 512 MiB left, and it works all the same."""
    machine = Machine(60 * MIB, total=1024 * MIB)
    assert not machine.is_short()
    machine.available = 50 * MIB
    assert machine.is_short()


@pytest.mark.promise("short memory pauses the run")
def test_stalls_count_as_shortage() -> None:
    """When everybody waits for memory, what the kernel calls available is not."""
    machine = Machine(8192 * MIB)
    machine.stall = 25.0
    assert machine.is_short()
    assert "25 % of the time" in str(machine.guard.shortage)
    machine.stall = 10.0
    assert machine.is_short()
    machine.stall = 1.0
    assert not machine.is_short()


@pytest.mark.promise("short memory pauses the run")
def test_when_it_stays_short_workers_go_one_at_a_time() -> None:
    """One after ten seconds, the next ten seconds later, and none when there is none left."""
    machine = Machine(100 * MIB)
    advice = [machine.look(1, 2) for _ in range(25)]
    assert [second for second, one in enumerate(advice) if one is Advice.RETIRE] == [10, 20]
    assert machine.look(after=100) is None
    assert machine.guard.shortage is not None


def test_a_worker_beyond_its_share_is_renewed_now_and_then() -> None:
    """At once when it is found, but not again every second; what all share is counted once."""
    machine = Machine(4096 * MIB)
    machine.shared = 60 * MIB
    machine.sizes = {1: 100 * MIB, 2: 400 * MIB}
    advice = [machine.look(1, 2) for _ in range(40)]
    assert [second for second, one in enumerate(advice) if one is Advice.RENEW] == [0, 30]
    assert machine.guard.size_bytes(2) == 400 * MIB
    assert machine.guard.peak_bytes == 560 * MIB


def test_the_guard_looks_once_a_second_however_often_it_is_asked() -> None:
    """Reading the memory of processes takes time."""
    machine = Machine(4096 * MIB)
    reads = []
    watched = guard.MemoryGuard(0, lambda: reads.append(1) or machine.read(), lambda pid: 0, lambda: 0, machine.clock)
    for _ in range(100):
        machine.clock.seconds += 0.1
        watched.look([1])
    assert 9 <= len(reads) <= 11
