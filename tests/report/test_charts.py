"""Charts: round values on the axis, every place inside the drawing, whatever the figures are."""

from __future__ import annotations

import pytest

from fineweb_shards.report.charts import Chart, make_columns, round_steps
from fineweb_shards.units import show_count


@pytest.mark.parametrize(
    ("highest", "steps"),
    [
        (0, [0, 1]),
        (0.4, [0, 1]),
        (3, [0, 1, 2, 3]),
        (155, [0, 50, 100, 150, 200]),
        (4e9, [0, 1e9, 2e9, 3e9, 4e9]),
        (6.34e6, [0, 1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 7e6]),
    ],
)
def test_the_axis_has_round_values(highest: float, steps: list[float]) -> None:
    """Whole ones, from 0 to the highest or a little above it."""
    assert round_steps(highest) == steps


def test_any_value_has_its_axis() -> None:
    """Two to eight values, equally far apart, also for figures of damaged files."""
    for exponent in range(-20, 190):
        highest = 2.0 ** (exponent / 3)
        steps = round_steps(highest)
        assert 2 <= len(steps) <= 8
        assert steps[-1] >= highest
        assert steps[-1] - steps[1] < max(1, highest)


def test_every_place_is_inside_the_drawing() -> None:
    """From one corner to the other."""
    chart = Chart("shares", "parts", show_count, 10.0, [], [("a", [(0, 0), (5, 7), (10, 3)])])
    assert chart.path(chart.areas[0][1]) == "M60.0 226.0L416.0 8.0L772.0 132.6Z"


def test_columns_stand_over_their_names() -> None:
    """A column fills most of its room; of many not all are named."""
    chart = make_columns("lengths", [f"{2**i}" for i in range(14)], [*range(14)], show_count)
    assert [text for _, text in chart.labels] == [f"{2**i}" for i in range(14)]
    many = make_columns("lengths", [f"{2**i}" for i in range(15)], [*range(15)], show_count)
    assert [text for _, text in many.labels] == [f"{4**i}" for i in range(8)]
    title, outline = chart.areas[3]
    assert title == "8: 3"
    assert outline[0][0] < chart.labels[3][0] < outline[-1][0]
