"""Describe charts by values in the units of their axes, and compute pixels; `chart.html` writes them as SVG.

The page needs only two kinds of charts, too few for a library. Colours come from the page's style sheet, so that dark
mode works and the Content-Security-Policy allows only that one. Phones scroll charts, which would be illegible when
scaled down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar

from fineweb_shards.units import show_count

_MOST_STEPS = 7  # of the vertical axis
_COLUMN_SPACE = 0.1  # on either side of a column
_MOST_NAMES = 14  # of columns

Place = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """The content of a chart, and its places in pixels. Both axes begin at 0."""

    form: str  # "columns" or "shares", see page.css
    title: str  # read aloud by screen readers
    show: Callable[[float], str]  # formats a value
    end: float  # of the horizontal axis
    labels: Sequence[tuple[float, str]]  # places on the horizontal axis, and texts
    areas: Sequence[tuple[str, Sequence[Place]]]  # titles and outlines
    limits: Sequence[float] = ()  # values to compare with, as lines
    width: ClassVar[int] = 780
    height: ClassVar[int] = 250
    left: ClassVar[int] = 60  # the margin, for labels like `731.0 MB`
    top: ClassVar[int] = 8
    right: ClassVar[int] = width - 8
    bottom: ClassVar[int] = height - 24

    @cached_property
    def steps(self) -> list[float]:
        """The labelled values of the vertical axis."""
        return round_steps(max((value for _, outline in self.areas for _, value in outline), default=0.0))

    def x(self, value: float) -> float:
        return round(self.left + value / self.end * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom + value / self.steps[-1] * (self.top - self.bottom), 1)

    def path(self, outline: Sequence[Place]) -> str:
        return "M" + "L".join(f"{self.x(place)} {self.y(value)}" for place, value in outline) + "Z"


def make_columns(title: str, names: Sequence[str], values: Sequence[float], show: Callable[[float], str]) -> Chart:
    """Make a chart with a column for each value, and below it as many names as fit."""
    columns = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        begin, end = place + _COLUMN_SPACE, place + 1 - _COLUMN_SPACE
        columns.append((f"{name}: {show(value)}", [(begin, 0.0), (begin, value), (end, value), (end, 0.0)]))
    every = math.ceil(len(names) / _MOST_NAMES)
    labels = [(place + 0.5, names[place]) for place in range(0, len(names), every)]
    return Chart("columns", title, show, len(values), labels, columns)


def stack_shares(title: str, names: Sequence[str], rows: Sequence[Sequence[int]], wanted: Sequence[float]) -> Chart:
    """Make a chart of shares along a stream, stacked up to 100 %. Each row holds the tokens of each name in the next
    stretch of the stream. The wanted shares are lines between the areas."""
    places = list(accumulate((sum(row) for row in rows), initial=0))
    areas, below = [], [0.0] * len(rows)
    for number, name in enumerate(names):
        above = [100 * sum(row[: number + 1]) / sum(row) for row in rows]
        outline = [*_draw_steps(places, above), *reversed(_draw_steps(places, below))]
        areas.append((name, outline))
        below = above
    limits = [100 * value for value in list(accumulate(wanted))[:-1]]
    # Leave room for the last label, the end of the stream.
    inner = [step for step in round_steps(places[-1]) if step < 0.94 * places[-1]]
    labels = [(place, show_count(place)) for place in (*inner, places[-1])]
    return Chart("shares", title, "{:.0f} %".format, places[-1], labels, areas, limits)


def _draw_steps(places: Sequence[float], values: Sequence[float]) -> list[Place]:
    return [(place, value) for ends, value in zip(pairwise(places), values, strict=True) for place in ends]


def round_steps(highest: float) -> list[float]:
    """Return round values from 0 to `highest` or above. Steps are at least 1, because values are counts."""
    rough = max(1.0, highest / _MOST_STEPS)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if step >= rough)
    return [step * number for number in range(max(1, math.ceil(highest / step)) + 1)]
