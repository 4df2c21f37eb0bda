"""Make the report's sections about the runs: state and key figures, the list of runs (start, end, results, waits), and
charts of speed and memory over time, with waits and faults."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from fineweb_shards.report.charts import Chart, Place, Stretch
from fineweb_shards.report.facts import Facts, Section, Table, show_moment
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.run_files import WAIT, Mark, Point, RunRecord
from fineweb_shards.watching.status import RUNNING, describe_status, resume_command

_SHOWN_RUNS = 100
_SHOWN_MARKS = 100
_RUN_COLUMNS = {
    "run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
    "tokens made": "number", "kept": "number", "tokens/s": "number", "fetched": "number",
}  # fmt: skip
_BINS = 150  # of a chart
_LABELS = 7  # of its horizontal axis
_LEAST_BIN_SECONDS = 4.0  # tokens arrive in large blocks: a finer line would show only noise
_NARROWEST_BAND_SHARE = 1 / 300  # of the width: a narrower band would be invisible

Value = Callable[[Point, Point], float]  # the value to draw, from a point and its successor


def make_headline(facts: Facts) -> Section:
    """Return the facts at the top of the page."""
    status, source = facts.status, ""
    if status.manifest is not None:
        parts = [part for part in status.manifest.parts if part.files]
        commits = [f", commit {part.commit[:10]}" if part.commit else "" for part in parts]
        source = " + ".join(part.label + commit for part, commit in zip(parts, commits, strict=True))
    return {
        "name": status.store.name,
        "source": source,
        "state": status.state,
        "words": describe_status(status),
        "command": resume_command(status),
        "figures": list(_list_figures(facts)),
    }


def _list_figures(facts: Facts) -> Iterator[tuple[str, str]]:
    manifest, heartbeat, runs = facts.status.manifest, facts.status.heartbeat, facts.history.runs
    running = heartbeat is not None and facts.status.state == RUNNING
    if heartbeat is not None and running:
        now = heartbeat.snapshot
        in_pass, of_both = (f" in pass {now.pass_number} of 2", " of both") if now.pass_number else ("", "")
        share = f" ({100 * now.share:.1f} %{of_both})" if now.share is not None else ""
        yield f"tokens so far{in_pass}", f"{show_count(now.tokens)}{share}"
        if now.seconds_left is not None:
            yield "time left", show_seconds(now.seconds_left)
        if now.tokens_per_second:
            yield "tokens/s now", show_count(now.tokens_per_second)
    if manifest is not None:
        if not running:
            yield "tokens", f"{manifest.tokens:,}"
        yield "documents", f"{manifest.documents:,}"
        yield "finished shards", f"{manifest.shard_count:,}"
        yield "on disk", show_bytes(sum(record.bytes for record in manifest.shards))
        if manifest.seconds and manifest.tokens:
            yield "working time, without waits", show_seconds(manifest.seconds)
            if manifest.complete or not manifest.is_shuffled:  # else much of the time was spent on future shards
                yield "tokens/s while working", show_count(manifest.tokens / manifest.seconds)
    if len(runs) > 1:
        yield "runs", f"{len(runs):,}"
    if (waited_seconds := sum(run.stood_still_seconds for run in runs)) >= 1:
        yield "time waited", show_seconds(waited_seconds)
    if fetched_bytes := sum(run.fetched_bytes for run in runs):
        yield "fetched", show_bytes(fetched_bytes)
        if work_seconds := sum(run.work_seconds for run in runs):
            yield "fetched per second of work", show_bytes(fetched_bytes / work_seconds)
    if manifest is not None and manifest.peak_memory_bytes:
        yield "peak memory", show_bytes(manifest.peak_memory_bytes)
    if facts.figures.statistics.tokens:
        yield "bytes per token", f"{facts.figures.statistics.bytes_per_token:.2f}"


def list_runs(facts: Facts) -> Section | None:
    """Return a table with a row for each run; None if no run is known."""
    runs, manifest = facts.history.runs[-_SHOWN_RUNS:], facts.status.manifest
    if not runs:
        return None
    # The tokens that a run left in finished shards or recorded piles; the next run began after them.
    ends = [after.first_tokens for _, after in pairwise(runs)]
    ends.append(manifest.tokens + manifest.piled_tokens if manifest is not None else runs[-1].first_tokens)
    kept = [(run, max(0, end - run.first_tokens)) for run, end in zip(runs, ends, strict=True)]
    active = runs[-1] if facts.status.state == RUNNING else None
    rows = [_run_row(run, tokens, active=run is active) for run, tokens in kept]
    shown = len(_RUN_COLUMNS) if any(run.fetched_bytes for run in runs) else len(_RUN_COLUMNS) - 1
    table = Table(dict([*_RUN_COLUMNS.items()][:shown]), [row[:shown] for row in rows])
    lost_tokens = any(run.new_tokens > tokens for run, tokens in kept)
    return {"table": table, "lost_tokens": lost_tokens, "passes": manifest is not None and manifest.is_shuffled}


def _run_row(run: RunRecord, kept_tokens: int, *, active: bool) -> list[str]:
    made_tokens = max(run.new_tokens, kept_tokens)  # the history lacks a killed run's last seconds
    began, ended = show_moment(run.begin), show_moment(run.end)
    if began.split()[0] == ended.split()[0]:
        ended = ended.split()[1]  # the same day
    return [
        f"{run.number:,}",
        began,
        "" if active else ended,
        "running" if active else run.ending or "killed, or a power cut",
        run.describe_waits() or "never",
        show_count(made_tokens),
        "" if active else show_count(kept_tokens),
        show_count(made_tokens / run.work_seconds) if run.work_seconds >= 1 else "",
        show_bytes(run.fetched_bytes),
    ]


def list_marks(facts: Facts) -> Section | None:
    """Return a table with a row for each wait and each fault; None if there were none."""
    marks, rows = facts.history.marks, []
    for mark in marks[-_SHOWN_MARKS:]:
        waited = "still waiting" if mark.end is None else f"waited {show_seconds(mark.end - mark.time)}"
        rows.append([show_moment(mark.time), waited if mark.kind == WAIT else mark.kind, mark.text])
    table = Table({"when": "name", "what": "text", "more": "text"}, rows)
    return {"table": table, "count": len(marks)} if marks else None


def chart_runs(facts: Facts) -> Section | None:
    """Make two charts with the same time axis; None if there are too few points."""
    history, marks = facts.history, facts.history.marks
    runs = _split_runs(history.points)
    if not runs:
        return None
    axis = TimeAxis([(run[0].time, run[-1].time) for run in runs])
    speed = _make_chart("Speed in tokens/s", show_count, axis, history.points, marks, _tokens_per_second)
    memory = None
    measured = [point for point in history.points if point.memory_bytes]  # 0 until the first measurement
    if _split_runs(measured):
        memory = _make_chart("Memory in use", show_bytes, axis, measured, marks, lambda _, after: after.memory_bytes)
        budgets = [
            Stretch(axis.position(run.begin), axis.position(run.end), run.budget_bytes, "budget")
            for run in history.runs
            if run.budget_bytes
        ]
        memory = replace(memory, limits=budgets)
    return {"speed": speed, "memory": memory}


def _make_chart(
    what: str,
    show: Callable[[float], str],
    axis: TimeAxis,
    points: Sequence[Point],
    marks: Sequence[Mark],
    value: Value,
) -> Chart:
    """Make a chart of `value` over time, with a line for each run, waits as bands and faults as dots."""
    begin, end = show_moment(points[0].time), show_moment(points[-1].time)
    count = show_number_of(len({point.run for point in points}), "run")
    narrowest = axis.length * _NARROWEST_BAND_SHARE
    bands = []
    for mark in marks:
        if mark.kind == WAIT:
            first = min(axis.position(mark.time), axis.length - narrowest)
            bands.append((first, max(axis.position(mark.end or points[-1].time), first + narrowest)))
    return Chart(
        "over-time",
        f"{what} from {begin} to {end}, in {count}",
        show,
        axis.length,
        axis.labels(),
        lines=[_make_line(axis, run, len(run) / len(points), value) for run in _split_runs(points)],
        bands=bands,
        dots=[axis.position(mark.time) for mark in marks if mark.kind != WAIT],
    )


def _split_runs(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of each run with at least two, enough for a line."""
    runs = [list(run) for _, run in groupby(points, lambda point: point.run)]
    return [run for run in runs if len(run) > 1]


def _make_line(axis: TimeAxis, run: list[Point], share: float, value: Value) -> list[Place]:
    """Make the line of a run. If it has more points than its `share` of the chart's width can show, choose some of them
    evenly, including the first and the last."""
    bins = min(_BINS * share, (run[-1].time - run[0].time) / _LEAST_BIN_SECONDS)
    most = min(len(run), max(2, round(bins)))
    thin = [run[round(number * (len(run) - 1) / (most - 1))] for number in range(most)]
    line = [(axis.position(after.time), value(before, after)) for before, after in pairwise(thin)]
    return [(axis.position(run[0].time), line[0][1]), *line]  # two points, even for a run with only two


def _tokens_per_second(before: Point, after: Point) -> float:
    seconds = after.time - before.time
    return max(0.0, (after.tokens - before.tokens) / seconds) if seconds > 0 else 0.0


class TimeAxis:
    """Time without the gaps between runs: converts moments, in seconds since 1970, to places between 0 and `length`,
    and back. `spans` are the beginning and the end of each run."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans
        lengths = (end - begin for begin, end in spans)
        *self._starts, self.length = accumulate(lengths, initial=0.0)  # the place of each span's beginning

    def position(self, moment: float) -> float:
        """Return the place of a moment; for one between two runs, the end of the first."""
        number = max(0, bisect_right([begin for begin, _ in self._spans], moment) - 1)
        begin, end = self._spans[number]
        return self._starts[number] + min(max(0.0, moment - begin), end - begin)

    def labels(self) -> list[tuple[float, str]]:
        """Return evenly spaced labels with times of day, and dates if there are several days. Not at round times:
        without the gaps between runs those would be unevenly spaced, or missing."""
        if not self._spans:
            return []
        whole_seconds = self._spans[-1][1] - self._spans[0][0]
        short = "%H:%M:%S" if whole_seconds <= 600 else "%H:%M"
        form = "%d %b %H:%M" if whole_seconds > 86400 else short
        count = max(2, min(_LABELS, int(self.length) + 1))  # at most one per second
        labels = []
        for place in (self.length * number / (count - 1) for number in range(count)):
            span = max(0, bisect_right(self._starts, place) - 1)
            begin, end = self._spans[span]
            moment = min(begin + place - self._starts[span], end)
            labels.append((place, time.strftime(form, time.localtime(moment))))
        return labels
