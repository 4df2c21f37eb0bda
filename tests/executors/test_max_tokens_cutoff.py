"""When batches under way suffice for --max-tokens."""

from __future__ import annotations

from fineweb_shards.executors.scheduled_executor import MaxTokensCutoff


class Missing:
    """The tokens that are still missing."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens

    def __call__(self) -> int | None:
        return self.tokens


def test_no_limit() -> None:
    """Without a limit there is never enough."""
    assert not MaxTokensCutoff(Missing(None)).is_met_by(10**15, 10**15)


def test_a_guess_before_anything_is_measured() -> None:
    """It is rather too much than too little, and within twice of what English needs."""
    goal = MaxTokensCutoff(Missing(1000))
    assert not goal.is_met_by(int(4.6 * 1.2 * 1000), 0)
    assert goal.is_met_by(2 * 4600, 0)


def test_what_was_measured_counts() -> None:
    """If a condition leaves one token of 100 bytes, there are 100 bytes under way for each that is missing, and a
    margin; if nothing was left so far, as much as there may be."""
    missing = Missing(1000)
    goal = MaxTokensCutoff(missing)
    assert not goal.is_met_by(10**9, 50_000)
    missing.tokens = 500
    assert not goal.is_met_by(50_000, 50_000)
    assert goal.is_met_by(75_000, 50_000)
