"""How many batches a worker may have at once."""

from __future__ import annotations

from fineweb_shards.executors.lookahead import FEWEST_BATCHES, MOST_BATCHES, Lookahead


def drive(lookahead: Lookahead, speed_of: list[float], workers: int, *, waits: bool = True) -> list[int]:
    """Let batches finish for a simulated minute, fetched at the speed that the number of batches gives."""
    now, seen = 0.0, []
    for _ in range(60 * 8):
        now += 1 / 8
        speed = speed_of[min(lookahead.batches, len(speed_of) - 1)]
        lookahead.note_batch(round(speed / 8), 0.1 if waits else 0.0, now)
        seen.append(lookahead.batches)
    assert workers
    return seen


def test_a_disk_needs_no_more() -> None:
    """Where nobody waits for bytes, each worker has two batches for good."""
    assert set(drive(Lookahead(2), [1e9], 2, waits=False)) == {FEWEST_BATCHES}


def test_slow_connections_get_company() -> None:
    """While more batches bring more bytes, there are more, up to the limit."""
    seen = drive(Lookahead(2), [20e6 * n for n in range(40)], 2)
    assert max(seen) == MOST_BATCHES
    assert seen.index(MOST_BATCHES) < 12 * 8, "within some seconds"


def test_a_full_line_gets_no_more() -> None:
    """Where more connections bring nothing, there are few of them, whatever the wait."""
    seen = drive(Lookahead(2), [12e6] * 40, 2)
    assert max(seen) <= 2 * FEWEST_BATCHES
    assert seen[-1] == FEWEST_BATCHES


def test_it_ends_where_the_line_is_full() -> None:
    """It goes up while it is worthwhile, and stays near the number that fills the line."""
    seen = drive(Lookahead(2), [min(20e6 * n, 120e6) for n in range(40)], 2)
    assert 5 <= seen[-1] <= 10
