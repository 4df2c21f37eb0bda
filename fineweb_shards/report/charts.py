"""Charts as values: every line, box and label with its place in pixels. `chart.html` writes them as SVG.

The page needs two forms only, so no library draws them. Colours come from the page's style sheet: dark mode
reaches them, and the Content-Security-Policy has to know one style sheet only. Every chart is drawn twice,
for a desktop and for a phone: a drawing that is merely scaled down can't be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_MOST_STEPS = 5  # of the vertical axis
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 8, 8, 24  # room around the plot; on the left for `731.0 MB`
_COLUMN_SHARE = 0.8  # of the room for a column, the rest is space

Place = tuple[float, float]  # along both axes, in their units
Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Size:
    """A size of drawings."""

    name: str  # see page.css
    width: int
    height: int
    labels: int  # moments on the horizontal axis


_SIZES = (Size("wide", 720, 240, labels=7), Size("narrow", 330, 220, labels=3))


@dataclass(frozen=True, slots=True)
class Label:
    """A text and where it stands."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float
    title: str = ""  # shown by browsers under the pointer


@dataclass(frozen=True, slots=True)
class Scales:
    """From the units of both axes, which begin at 0, to pixels."""

    size: Size
    end: float  # of the horizontal axis
    steps: Sequence[float]  # of the vertical axis

    @property
    def right(self) -> float:
        return self.size.width - _RIGHT

    def x(self, value: float) -> float:
        share = min(max(0.0, value / self.end), 1.0) if self.end > 0 else 0.0
        return round(_LEFT + share * (self.right - _LEFT), 1)

    def y(self, value: float) -> float:
        plot_height = self.size.height - _TOP - _BOTTOM
        return round(_TOP + (1 - value / self.steps[-1]) * plot_height, 1)

    def box(self, begin: float, end: float, value: float, title: str = "") -> Box:
        """From the horizontal axis up to `value`."""
        x, y = self.x(begin), self.y(value)
        return Box(x, y, round(self.x(end) - x, 1), round(self.y(0) - y, 1), title)

    def path(self, places: Sequence[Place]) -> str:
        """A line as SVG spells it."""
        return "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in places)

    def step_labels(self, show: Show) -> list[Label]:
        return [Label(_LEFT, self.y(step), show(step)) for step in self.steps]

    def x_label(self, place: float, text: str) -> Label:
        return Label(self.x(place), self.y(0), text)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart in one size."""

    scales: Scales
    x_labels: list[Label]
    y_labels: list[Label]
    columns: list[Box] = field(default_factory=list)
    bands: list[Box] = field(default_factory=list)  # waits
    lines: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    dots: list[Place] = field(default_factory=list)  # faults, in pixels


@dataclass(frozen=True, slots=True)
class Chart:
    """The same in every size, with a name for those who can't see it."""

    form: str  # "columns" or "over-time", see page.css
    title: str
    drawings: list[Drawing]


@dataclass(frozen=True, slots=True)
class Course:
    """What a chart over time shows, in the units of its axes."""

    end: float  # of the horizontal axis
    labels: Callable[[int], list[tuple[float, str]]]  # so many, with their places
    lines: list[list[Place]]  # not joined with each other
    limits: list[list[Place]]
    bands: list[tuple[float, float]]
    dots: list[float]


def draw_course(title: str, course: Course, show: Show) -> Chart:
    """Lines over time with their limits, bands for waits and dots for faults."""
    highest = max((y for line in [*course.lines, *course.limits] for _, y in line), default=0.0)
    steps = round_steps(highest)
    return Chart(
        "over-time", title, [_draw_course(course, Scales(size, course.end, steps), show) for size in _SIZES]
    )


def _draw_course(course: Course, scales: Scales, show: Show) -> Drawing:
    top = scales.steps[-1]
    return Drawing(
        scales,
        [scales.x_label(place, text) for place, text in course.labels(scales.size.labels)],
        scales.step_labels(show),
        bands=[scales.box(begin, end, top) for begin, end in course.bands],
        lines=[scales.path(line) for line in course.lines],
        limits=[scales.path(limit) for limit in course.limits],
        dots=[(scales.x(place), scales.y(top)) for place in course.dots],
    )


def draw_columns(title: str, labels: Sequence[str], values: Sequence[float], show: Show) -> Chart:
    """A column for each value, with a label below as many of them as there is room for."""
    steps = round_steps(max(values, default=0.0))
    all_scales = [Scales(size, len(values), steps) for size in _SIZES]
    return Chart("columns", title, [_draw_columns(labels, values, scales, show) for scales in all_scales])


def _draw_columns(labels: Sequence[str], values: Sequence[float], scales: Scales, show: Show) -> Drawing:
    every = math.ceil(len(labels) / (2 * scales.size.labels))
    space = (1 - _COLUMN_SHARE) / 2
    columns = [
        scales.box(place + space, place + 1 - space, value, f"{label}: {show(value)}")
        for place, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    below = [scales.x_label(place + 0.5, labels[place]) for place in range(0, len(labels), every)]
    return Drawing(scales, below, scales.step_labels(show), columns=columns)


def round_steps(highest: float) -> list[float]:
    """0 and a few round values, the last at `highest` or above. No step is below 1: everything is a count."""
    rough = max(1.0, highest / _MOST_STEPS)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if step >= rough)
    return [step * number for number in range(max(1, math.ceil(highest / step)) + 1)]
