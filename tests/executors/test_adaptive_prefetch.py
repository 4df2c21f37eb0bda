"""How many batches a worker may have at once."""

from __future__ import annotations

from fineweb_shards.executors.scheduled_executor import (
    FEWEST_BATCHES,
    FIRST_REMOTE_BATCHES,
    MOST_BATCHES,
    AdaptivePrefetch,
)


def drive(prefetch: AdaptivePrefetch, speed_of: list[float], needed_speed: float = 1e12) -> list[int]:
    """Let batches of two workers finish for a simulated minute, fetched at the speed that their number gives; workers
    wait while that is less than they need."""
    now, seen = 0.0, []
    for _ in range(60 * 8):
        now += 1 / 8
        speed = min(speed_of[min(prefetch.batches, len(speed_of) - 1)], needed_speed)
        prefetch.note_batch(round(speed / 8), 0.0 if speed >= needed_speed else 0.1, now)
        seen.append(prefetch.batches)
    return seen


def test_a_disk_needs_no_more() -> None:
    """Where nothing is fetched, each worker has two batches for good."""
    assert set(drive(AdaptivePrefetch(2, is_remote=False), [0.0])) == {FEWEST_BATCHES}


def test_slow_connections_get_company() -> None:
    """While more batches bring more bytes, there are more, up to the limit, within some seconds."""
    seen = drive(AdaptivePrefetch(2, is_remote=True), [2e6 * n for n in range(40)])
    assert seen[0] == FIRST_REMOTE_BATCHES
    assert seen.index(MOST_BATCHES) < 6 * 8


def test_a_full_line_gets_no_more() -> None:
    """Where more connections bring nothing, there are no more than at the beginning, whatever the wait."""
    seen = drive(AdaptivePrefetch(2, is_remote=True), [12e6] * 40)
    assert seen[-1] == FIRST_REMOTE_BATCHES
    assert sum(count > FIRST_REMOTE_BATCHES for count in seen) < 3 * 8


def test_a_quick_line_takes_little_memory() -> None:
    """While nobody waits, less is fetched ahead, down to what is just enough."""
    seen = drive(AdaptivePrefetch(2, is_remote=True), [20e6 * n for n in range(40)], needed_speed=70e6)
    assert max(seen[30 * 8 :]) <= 6
    assert min(seen) >= 3
