"""The time left, on simulated runs: nothing here waits for a clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_shards.watching.progress import Progress, Speedometer, Total
from fineweb_shards.watching.run_files import EventLog

TOKENS = 10_000_000_000


def steady(second: int) -> float:
    return 4_000_000


def noisy(second: int) -> float:
    return 4_000_000 * random.Random(second).uniform(0.3, 1.7)


def in_jerks(second: int) -> float:
    return 20_000_000 if second % 5 == 0 else 0


def slow_start(second: int) -> float:
    return 0 if second < 90 else 4_000_000


def simulate(
    speed: Callable[[int], float], total: Total, density: Callable[[float], float], waits: range = range(0)
) -> list[tuple[float, float | None, int]]:
    """A run second by second: the share of its working time that has passed, the time left as it was shown, and as it
    was. `density` is tokens a share of the input, to be estimated from what was read."""
    speedometer, progress = Speedometer(), Progress(EventLog(Path("out")))
    done, share, shown = 0.0, 0.0, []
    working = 0
    for second in range(10**6):
        waiting = second in waits
        if not waiting:
            made = min(speed(second), TOKENS - done)
            done += made
            share = min(1.0, share + made / TOKENS / density(share))
            working += bool(done)
        speedometer.add(second, round(done), working=not waiting)
        expected = total.tokens(round(done), round(done), share)
        progress.tokens = round(done)
        shown.append((working, progress.seconds_left(expected, speedometer.per_second)))
        if done >= TOKENS:
            break
    return [(now / working, left, working - now) for now, left in shown]


@pytest.mark.parametrize("speed", [steady, noisy, in_jerks, slow_start])
@pytest.mark.parametrize("planned", [0.7, 1.0, 1.4], ids=lambda factor: f"plan x{factor}")
def test_time_left_is_right_after_the_first_tenth(speed: Callable[[int], float], planned: float) -> None:
    """Within 20 %, whatever the speed is like and however wrong the plan's guess was."""
    run = simulate(speed, Total(round(TOKENS * planned)), lambda share: 1.0)
    for share, shown, truth in run:
        if 0.1 <= share <= 0.95:
            assert shown is not None
            assert abs(shown - truth) <= 0.2 * truth, (share, shown, truth)


def test_waiting_does_not_spoil_the_speed() -> None:
    """Half an hour without a network leaves the speed of work, and so the time left, as it was."""
    run = simulate(steady, Total(TOKENS, exact=True), lambda share: 1.0, waits=range(600, 2400))
    for share, shown, truth in run:
        if 0.1 <= share <= 0.95:
            assert shown is not None
            assert abs(shown - truth) <= 0.05 * truth


def test_a_change_of_speed_is_followed_within_minutes() -> None:
    """The last minutes count, not the whole run."""
    run = simulate(lambda second: 4e6 if second < 1000 else 1e6, Total(TOKENS, exact=True), lambda share: 1.0)
    late = [(shown, truth) for share, shown, truth in run if 0.35 <= share <= 0.95]
    assert all(shown is not None and abs(shown - truth) <= 0.1 * truth for shown, truth in late)


def test_the_total_gives_way_to_what_was_read() -> None:
    """A wrong guess counts like 3 % of the input; an exact figure is never changed."""
    guess = Total(500)
    assert guess.tokens(0, 0, None) == 500
    assert guess.tokens(500, 500, 0.5) == pytest.approx(1000, rel=0.06)
    assert guess.tokens(990, 990, 0.99) == pytest.approx(1000, rel=0.01)
    assert Total(500, exact=True).tokens(300, 300, 0.3) == 500


def test_tokens_of_a_half_read_row_group_are_not_counted_twice() -> None:
    """A file with one huge row group is at 0 % until its end: the guess stands, never below what is done."""
    total = Total(1000)
    assert total.tokens(600, 0, 0.0) == 1000
    assert total.tokens(1100, 0, 0.0) == 1100


def test_a_limit_ends_the_stream() -> None:
    """--max-tokens is all there will be."""
    assert Total(500, limit=400).tokens(100, 100, 0.1) == 400


def test_nothing_is_said_that_is_not_known() -> None:
    """Standard input has no total; before the first tokens there is no speed."""
    assert Total(None).tokens(5, 5, None) is None
    speedometer = Speedometer()
    speedometer.add(0, 0, working=False)
    speedometer.add(1, 0, working=True)
    assert speedometer.per_second is None
    progress = Progress(EventLog(Path("out")))
    assert progress.seconds_left(None, 1.0) is None
    assert progress.seconds_left(10, None) is None
