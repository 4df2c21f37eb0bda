"""Make the report's charts of speed and memory over time, with waits and faults."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from fineweb_shards.report.charts import Chart, Gap, LimitLine, Place
from fineweb_shards.report.facts import Facts, Table, show_moment
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.run_files import WAIT, History, Mark, Point

_SHOWN_MARKS = 100
_BINS = 150
_LEAST_BIN_SECONDS = 4.0  # tokens arrive in large blocks: a finer line would only show those
_NARROWEST_BAND_SHARE = 1 / 300  # of the width: a narrower band would be invisible
# A gap between two runs, a second or a night, is drawn with one width: this share of the time of all runs,
# or less where there are many.
_GAP_SHARE = 0.03
_ALL_GAPS_SHARE = 0.3
_DAY_SECONDS = 86400
_SHORT_SECONDS = 600

Value = Callable[[Point, Point], float]  # the value to draw, computed from a point and the one before


@dataclass(frozen=True, slots=True)
class OverTime:
    """Two charts with the same time axis, to be shown one below the other."""

    speed: Chart
    memory: Chart | None  # None if it was not measured
    interrupted: bool  # there are gaps between runs
    marks: Table | None
    mark_count: int


def chart_runs(facts: Facts) -> OverTime | None:
    """Make the charts of all runs; None if there are too few points."""
    history = facts.history
    points, marks = history.points, history.marks
    if not _split_runs(points):
        return None
    axis = TimeAxis([(run[0].time, run[-1].time) for run in _split_runs(points)])
    title = _describe("Speed in tokens/s", points)
    speed = _make_chart(title, show_count, axis, points, marks, _tokens_per_second)
    memory = _chart_memory(axis, history)
    rows = []
    for mark in marks[-_SHOWN_MARKS:]:
        waited = "still waiting" if mark.end is None else f"waited {show_seconds(mark.end - mark.time)}"
        rows.append([show_moment(mark.time), waited if mark.kind == WAIT else mark.kind, mark.text])
    table = Table({"when": "name", "what": "text", "more": "text"}, rows) if rows else None
    return OverTime(speed, memory, bool(speed.gaps), table, len(marks))


def _chart_memory(axis: TimeAxis, history: History) -> Chart | None:
    points = [point for point in history.points if point.memory_bytes]  # 0 until the first measurement
    if not _split_runs(points):
        return None
    limits = [
        LimitLine(axis.position(run.begin), axis.position(run.end), run.budget_bytes)
        for run in history.runs
        if run.budget_bytes
    ]
    title = _describe("Memory in use", points)
    chart = _make_chart(title, show_bytes, axis, points, history.marks, lambda _, after: after.memory_bytes)
    return replace(chart, limits=limits)


def _make_chart(
    title: str,
    show: Callable[[float], str],
    axis: TimeAxis,
    points: Sequence[Point],
    marks: Sequence[Mark],
    value: Value,
) -> Chart:
    """Make a chart of `value` over time, with a line for each run, waits as bands and faults as dots."""
    runs = _split_runs(points)
    return Chart(
        "over-time",
        title,
        show,
        axis.length,
        axis.labels,
        lines=[_make_line(axis, run, len(run) / len(points), value) for run in runs],
        bands=[_make_band(axis, mark, points[-1].time) for mark in marks if mark.kind == WAIT],
        gaps=axis.gaps(),
        dots=[axis.position(mark.time) for mark in marks if mark.kind != WAIT],
    )


def _split_runs(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of each run that has at least two, enough for a line."""
    runs = [list(run) for _, run in groupby(points, lambda point: point.run)]
    return [run for run in runs if len(run) > 1]


def _make_line(axis: TimeAxis, run: list[Point], share: float, value: Value) -> list[Place]:
    """Make the line of a run, with no more points than its `share` of the chart's width can show."""
    bins = min(_BINS * share, (run[-1].time - run[0].time) / _LEAST_BIN_SECONDS)
    thin = _thin(run, max(2, round(bins)))
    line = [(axis.position(after.time), value(before, after)) for before, after in pairwise(thin)]
    return [(axis.position(run[0].time), line[0][1]), *line]  # so that a run of only two points has a line


def _thin(points: list[Point], most: int) -> list[Point]:
    """Choose at most `most` points evenly, including the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def _make_band(axis: TimeAxis, mark: Mark, last_moment: float) -> tuple[float, float]:
    begin, end = axis.position(mark.time), axis.position(mark.end or last_moment)
    narrowest = axis.length * _NARROWEST_BAND_SHARE
    begin = min(begin, axis.length - narrowest)
    return begin, max(end, begin + narrowest)


def _tokens_per_second(before: Point, after: Point) -> float:
    seconds = after.time - before.time
    return max(0.0, (after.tokens - before.tokens) / seconds) if seconds > 0 else 0.0


def _describe(what: str, points: Sequence[Point]) -> str:
    begin, end = show_moment(points[0].time), show_moment(points[-1].time)
    return f"{what} from {begin} to {end}, in {show_number_of(len({point.run for point in points}), 'run')}"


class TimeAxis:
    """The runs one after the other, all gaps between them of one length: converts moments, in seconds since
    1970, to places between 0 and `length`, and back."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        """Make the axis; `spans` are the beginning and the end of each run."""
        self._spans = spans
        work_seconds = sum(end - begin for begin, end in spans)
        self._starts: list[float] = []  # the place of each span's beginning
        place = 0.0
        gap_length = work_seconds * min(_GAP_SHARE, _ALL_GAPS_SHARE / len(spans)) if spans else 0.0
        for number, (begin, end) in enumerate(spans):
            place += gap_length if number else 0.0
            self._starts.append(place)
            place += end - begin
        self.length = place

    def position(self, moment: float) -> float:
        """Return the place of a moment; between two runs, it is the end of the first."""
        number = max(0, bisect_right([begin for begin, _ in self._spans], moment) - 1)
        begin, end = self._spans[number]
        return self._starts[number] + min(max(0.0, moment - begin), end - begin)

    def gaps(self) -> list[Gap]:
        """Return the gaps between the runs."""
        neighbours = zip(pairwise(self._spans), pairwise(self._starts), strict=True)
        return [
            Gap(start + end - begin, next_start, f"no run for {show_seconds(max(0.0, next_begin - end))}")
            for ((begin, end), (next_begin, _)), (start, next_start) in neighbours
        ]

    def labels(self, most: int) -> list[tuple[float, str]]:
        """Return at most `most` labels with times of day (and dates, if there are several days), evenly
        spread from end to end. Not at round times: with shortened gaps those would be uneven, or missing."""
        if not self._spans:
            return []
        whole_seconds = self._spans[-1][1] - self._spans[0][0]
        short = "%H:%M:%S" if whole_seconds <= _SHORT_SECONDS else "%H:%M"
        form = "%d %b %H:%M" if whole_seconds > _DAY_SECONDS else short
        count = max(2, min(most, int(self.length) + 1))  # no second twice
        labels = []
        for place in (self.length * number / (count - 1) for number in range(count)):
            span = max(0, bisect_right(self._starts, place) - 1)
            begin, end = self._spans[span]
            moment = min(begin + place - self._starts[span], end)
            labels.append((place, time.strftime(form, time.localtime(moment))))
        return labels
