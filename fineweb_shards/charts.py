"""The report's charts, drawn by pygal as SVG that stands in the page: no script, no style of its own.

Colours come from the page's style sheet, so that dark mode reaches them, and so that the page's
Content-Security-Policy needs to know one style sheet only. Every chart is drawn twice, for a desktop and
for a phone: a drawing that is merely scaled down can't be read.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pygal

from fineweb_shards.markup import Markup, join
from fineweb_shards.watching.history import WAIT, Mark, Point

# pygal leaves a finder behind, for plug-ins that nobody has here, and other packages' imports warn about it.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]

_SIZES = {"wide": (720, 240), "narrow": (330, 220)}
_LABELS = {"wide": 7, "narrow": 3}
_LABEL_CHARACTERS = 8  # `731.0 MB`
_BINS = 150
_LEAST_BIN_SECONDS = 4.0  # blocks of tokens come in jerks: a finer line would show nothing else
# A night between two runs must not squeeze them: a gap takes at most this share of the width.
_GAP_SHARE = 0.06
_DAY_SECONDS = 86400
_UNWANTED = ("defs", "title", "desc", ElementTree.Comment)

Place = tuple[float, float]


def draw_over_time(
    axis: TimeAxis,
    points: Sequence[Point],
    marks: Sequence[Mark],
    value: Callable[[Point, Point], float],
    show: Callable[[float], str],
    title: str,
    limits: Sequence[tuple[float, float, float]] = (),
) -> Markup:
    """`value` between every two points, with waits as bands, faults as dots, and `limits` (from, to, value)
    as lines. Charts with the same axis stand below each other, moment by moment."""
    runs = [run for run in _split_runs(points) if len(run) > 1]
    line: list[Place | None] = []
    for run in runs:
        room = min(_BINS * len(run) / len(points), (run[-1].time - run[0].time) / _LEAST_BIN_SECONDS)
        thin = _thin(run, max(2, round(room)))
        line += [(axis.position(b.time), value(a, b)) for a, b in pairwise(thin)]
        line.append(None)  # not joined with the next run
    bounds: list[Place | None] = []
    for begin, end, limit in limits:
        bounds += [(axis.position(begin), limit), (axis.position(end), limit), None]
    top = max((place[1] for place in [*line, *bounds] if place), default=0.0) or 1.0
    bands: list[Place | None] = []
    for mark in marks:
        if mark.kind == WAIT:
            begin, end = axis.position(mark.time), axis.position(mark.end or points[-1].time)
            shortest = axis.length / 300  # or it could not be seen
            begin, end = min(begin, axis.length - shortest), max(end, begin + shortest)
            bands += [(begin, 0), (begin, top), (end, top), (end, 0), None]
    faults = [(axis.position(mark.time), top) for mark in marks if mark.kind != WAIT]

    def draw(size: str) -> Any:
        # Labels of one width, or one chart's axis would begin further right than the other's.
        padded = _settings(size, lambda number: show(number).rjust(_LABEL_CHARACTERS))
        chart = pygal.XY(**padded, show_dots=False, range=(0, top), xrange=(0, axis.length))
        chart.x_labels = axis.labels(_LABELS[size])
        chart.add("waits", bands, fill=True, allow_interruptions=True)
        chart.add("value", line, allow_interruptions=True)
        chart.add("faults", faults, stroke=False, show_dots=True, dots_size=4)
        chart.add("limits", bounds, allow_interruptions=True)
        return chart

    return _draw_both(draw, title)


def draw_columns(
    labels: Sequence[str], values: Sequence[float], show: Callable[[float], str], title: str
) -> Markup:
    """A column for each value."""

    def draw(size: str) -> Any:
        every = -(-len(labels) // (2 * _LABELS[size]))
        chart = pygal.Bar(**_settings(size, show), show_minor_x_labels=False)
        chart.x_labels = labels
        chart.x_labels_major = labels[::every]
        chart.add("value", list(values))
        return chart

    return _draw_both(draw, title)


def has_line(points: Sequence[Point]) -> bool:
    """Whether there is anything to draw."""
    return any(len(run) > 1 for run in _split_runs(points))


def time_axis(points: Sequence[Point]) -> TimeAxis:
    """The axis of all runs that can be drawn."""
    return TimeAxis([(run[0].time, run[-1].time) for run in _split_runs(points) if len(run) > 1])


def _split_runs(points: Sequence[Point]) -> list[list[Point]]:
    """The points of each run."""
    runs: list[list[Point]] = []
    for point in points:
        if not runs or runs[-1][-1].run != point.run:
            runs.append([])
        runs[-1].append(point)
    return runs


class TimeAxis:
    """Moments to places: the runs one after the other, long gaps between them shortened."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans
        work = sum(end - begin for begin, end in spans)
        self._starts: list[float] = []  # the place of each span's beginning
        place = 0.0
        for number, (begin, end) in enumerate(spans):
            if number:
                place += min(max(0.0, begin - spans[number - 1][1]), _GAP_SHARE * work)
            self._starts.append(place)
            place += end - begin
        self.length = place

    def position(self, moment: float) -> float:
        """Between two runs: the end of the first."""
        number = max(0, bisect_right([begin for begin, _ in self._spans], moment) - 1)
        begin, end = self._spans[number]
        return self._starts[number] + min(max(0.0, moment - begin), end - begin)

    def labels(self, count: int) -> list[dict[str, Any]]:
        """Times of day, or of the year where it is more than one, evenly spread."""
        if not self._spans:
            return []
        whole = self._spans[-1][1] - self._spans[0][0]
        form = "%d %b %H:%M" if whole > _DAY_SECONDS else "%H:%M" if whole > 600 else "%H:%M:%S"
        places = [self.length * number / (count - 1) for number in range(count)]
        return [
            {"value": place, "label": time.strftime(form, time.localtime(self._moment(place)))}
            for place in places
        ]

    def _moment(self, place: float) -> float:
        number = max(0, bisect_right(self._starts, place) - 1)
        begin, end = self._spans[number]
        return min(begin + place - self._starts[number], end)


def _thin(points: list[Point], most: int) -> list[Point]:
    """Evenly chosen, with both ends."""
    if len(points) <= most:
        return points
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def _settings(size: str, show: Callable[[float], str]) -> dict[str, Any]:
    width, height = _SIZES[size]
    return {
        "width": width,
        "height": height,
        "js": (),  # pygal would load its own from elsewhere
        "disable_xml_declaration": True,
        "show_legend": False,
        "margin": 4,
        "value_formatter": show,
        "include_x_axis": True,
        "max_scale": 6,
        "min_scale": 3,
        "no_data_text": "",
        "truncate_label": -1,
    }


def _draw_both(draw: Callable[[str], Any], title: str) -> Markup:
    return join(*(_plain_svg(draw(size), size, title) for size in _SIZES))


def _plain_svg(chart: Any, size: str, title: str) -> Markup:
    """Without pygal's script, style sheet and tooltips, but with a name for those who can't see it. The value
    of a column becomes its title, which browsers show on their own."""
    root = chart.render_tree()
    for parent in root.iter():
        for child in list(parent):
            if child.tag == "desc" and child.get("class") == "value":
                child.tag, child.attrib = "title", {}
            elif child.tag in _UNWANTED or "tooltip-overlay" in child.get("class", ""):
                parent.remove(child)
    root.attrib.pop("id")
    root.set("class", f"chart {size}")
    root.set("role", "img")
    root.set("aria-label", title)
    return Markup(ElementTree.tostring(root, encoding="unicode"))
