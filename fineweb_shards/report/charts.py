"""Describe charts by values in the units of their axes, and compute pixels; `chart.html` writes them as SVG.

The page needs only two kinds of charts, so no library draws them. Colours come from the page's style sheet,
so that dark mode works and the Content-Security-Policy has to allow only one style sheet. Every chart is
drawn twice, for a desktop and for a phone, because a drawing that is merely scaled down can't be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MOST_STEPS = 7  # of the vertical axis
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 8, 8, 24  # margins of the plot; on the left for labels like `731.0 MB`
_COLUMN_SPACE = 0.1  # on either side of a column

Place = tuple[float, float]
Label = tuple[float, str]  # the place on the horizontal axis, and the text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a chart: a value, between two places of the horizontal axis."""

    begin: float
    end: float
    value: float
    title: str  # shown by browsers under the pointer


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of the horizontal axis in which nothing happened, drawn shorter than it was."""

    begin: float
    end: float
    title: str  # shown by browsers under the pointer


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A value not to be exceeded, between two places of the horizontal axis."""

    begin: float
    end: float
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The content of a chart. Both axes begin at 0."""

    form: str  # "over-time" or "columns", see page.css
    title: str  # read aloud by screen readers
    show: Callable[[float], str]  # formats a value
    end: float  # of the horizontal axis
    labels: Callable[[int], Sequence[Label]]  # takes the most labels that fit the horizontal axis
    columns: Sequence[Column] = ()
    lines: Sequence[Sequence[Place]] = ()
    limits: Sequence[LimitLine] = ()  # one above the axis is named at the axis's end
    gaps: Sequence[Gap] = ()
    bands: Sequence[tuple[float, float]] = ()  # from one place to another, over the whole height
    dots: Sequence[float] = ()  # at the top

    @property
    def steps(self) -> list[float]:
        """The labelled values of the vertical axis. A limit far above what was used would press the line
        to the ground, so it does not count."""
        values = [value for line in self.lines for _, value in line]
        return round_steps(max([*values, *(column.value for column in self.columns)], default=0.0))

    @property
    def drawings(self) -> list[Drawing]:
        steps = self.steps
        wide = Drawing("wide", 780, 250, self.labels(7), steps, self.end)
        return [wide, Drawing("narrow", 330, 220, self.labels(3), steps, self.end)]


@dataclass(frozen=True, slots=True)
class Drawing:
    """The pixel coordinates of a chart, for one width of screen."""

    size: str  # see page.css
    width: int
    height: int
    labels: Sequence[Label]
    steps: Sequence[float]
    end: float  # of the horizontal axis

    @property
    def left(self) -> float:
        return _LEFT

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def top(self) -> float:
        return _TOP

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    def x(self, value: float) -> float:
        share = min(max(0.0, value / self.end), 1.0) if self.end > 0 else 0.0
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        value = min(value, self.steps[-1])
        return round(self.bottom + value / self.steps[-1] * (self.top - self.bottom), 1)

    def path(self, line: Sequence[Place]) -> str:
        """Return a line as an SVG path."""
        return "M" + "L".join(f"{self.x(place)} {self.y(value)}" for place, value in line)


def make_columns(
    title: str, names: Sequence[str], values: Sequence[float], show: Callable[[float], str]
) -> Chart:
    """Make a chart with a column for each value, and its name below if there is room."""
    columns = [
        Column(place + _COLUMN_SPACE, place + 1 - _COLUMN_SPACE, value, f"{name}: {show(value)}")
        for place, (name, value) in enumerate(zip(names, values, strict=True))
    ]

    def label(most: int) -> list[Label]:
        every = math.ceil(len(names) / (2 * most))  # twice as many: names are half as wide as times of day
        return [(place + 0.5, names[place]) for place in range(0, len(names), every)]

    return Chart("columns", title, show, len(values), label, columns=columns)


def round_steps(highest: float) -> list[float]:
    """Return round values from 0 to `highest` or above. Steps are at least 1, because values are counts."""
    rough = max(1.0, highest / _MOST_STEPS)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if step >= rough)
    return [step * number for number in range(max(1, math.ceil(highest / step)) + 1)]
