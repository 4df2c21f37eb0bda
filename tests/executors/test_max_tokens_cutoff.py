"""When batches under way suffice for --max-tokens."""

from __future__ import annotations

from fineweb_shards.executors.scheduled_executor import is_enough


def test_a_guess_before_anything_is_measured() -> None:
    """It is rather too much than too little, and within twice of what English needs."""
    assert not is_enough(1000, 0, int(4.6 * 1.2 * 1000), 0)
    assert is_enough(1000, 0, 2 * 4600, 0)


def test_what_was_measured_counts() -> None:
    """If a condition leaves one token of 100 bytes, there are 100 bytes under way for each that is missing, and a
    margin; if nothing was left so far, as much as there may be."""
    assert not is_enough(1000, 0, 10**9, 50_000)
    assert not is_enough(500, 500, 50_000, 50_000)
    assert is_enough(500, 500, 75_000, 50_000)
