"""The report's sections about the run: headline, speed and memory over time, shards, settings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fineweb_shards.charts import draw_over_time, has_line, time_axis
from fineweb_shards.markup import Markup, tag
from fineweb_shards.report import Report
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.types import ShardRecord
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.history import WAIT, Mark, Point
from fineweb_shards.watching.status import RUNNING, resume_command, state_words

_SHOWN_SHARDS = 1000
_SHOWN_MARKS = 100


def render_headline(report: Report) -> list[Markup]:
    """How it stands, in one line and a few large figures."""
    status = report.status
    parts = [tag("p", state_words(status), class_=f"state {status.state}")]
    if command := resume_command(status):
        parts.append(tag("p", "To go on: ", tag("code", command)))
    figures = [
        tag("div", tag("dt", name), tag("dd", value), class_="figure") for name, value in _figures(report)
    ]
    return [*parts, tag("dl", *figures, class_="figures")]


def _figures(report: Report) -> list[tuple[str, str]]:
    manifest, beat = report.status.manifest, report.status.heartbeat
    running = beat is not None and report.status.state == RUNNING
    figures: list[tuple[str, str]] = []
    if beat is not None and running:
        seen = beat.snapshot
        share = f" ({100 * seen.share:.1f} %)" if seen.share is not None else ""
        figures.append(("tokens so far", f"{show_count(seen.tokens)}{share}"))
        if seen.seconds_left is not None:
            figures.append(("time left", show_seconds(seen.seconds_left)))
        if seen.tokens_per_second:
            figures.append(("tokens a second now", show_count(seen.tokens_per_second)))
    if manifest is not None:
        size = show_bytes(sum(record.bytes for record in manifest.shards))
        if not running:
            figures.append(("tokens", f"{manifest.tokens:,}"))
        figures += [
            ("documents", f"{manifest.documents:,}"),
            ("finished shards", f"{len(manifest.shards):,}"),
            ("on disk", size),
        ]
        if manifest.seconds and manifest.tokens:
            figures.append(("time of work, without waits", show_seconds(manifest.seconds)))
            figures.append(("tokens a second of work", show_count(manifest.tokens / manifest.seconds)))
    figures += _account(report)
    if manifest is not None and manifest.peak_memory_bytes:
        figures.append(("peak memory", show_bytes(manifest.peak_memory_bytes)))
    if report.survey.statistics.tokens:
        figures.append(("bytes a token", f"{report.survey.statistics.bytes_per_token:.2f}"))
    return figures


def _account(report: Report) -> list[tuple[str, str]]:
    """Over all runs: how many they were, what they waited and fetched."""
    runs = report.history.runs
    waited = sum(run.stood_still_seconds for run in runs)
    fetched = sum(run.fetched_bytes for run in runs)
    seconds = sum(run.work_seconds for run in runs)
    figures = []
    if len(runs) > 1:
        figures.append(("runs", f"{len(runs):,}"))
    if waited >= 1:
        figures.append(("time waited", show_seconds(waited)))
    if fetched:
        figures.append(("fetched", show_bytes(fetched)))
        if seconds:
            figures.append(("fetched a second of work", show_bytes(fetched / seconds)))
    return figures


def render_over_time(report: Report) -> Markup:
    """Speed and memory, with what happened."""
    points, marks = report.history.points, report.history.marks
    axis = time_axis(points)
    weighed = [point for point in points if point.memory_bytes]  # not while it starts, not on every system
    if not has_line(points):
        return section("Over time", tag("p", "Too little has been seen yet to draw it."))
    title = _describe("Speed in tokens a second", points)
    speed = draw_over_time(axis, points, marks, _speed, show_count, title)
    figures = [tag("figure", tag("figcaption", "Tokens a second"), speed)]
    if has_line(weighed):
        title = _describe("Memory in use", weighed)
        limits = [(run.begin, run.end, float(run.budget_bytes)) for run in report.history.runs
                  if run.budget_bytes]  # fmt: skip
        memory = draw_over_time(axis, weighed, marks, lambda a, b: b.memory_bytes, show_bytes, title, limits)
        budget = f"; the dashed line is the budget, {show_bytes(limits[-1][2])}" if limits else ""
        figures.append(tag("figure", tag("figcaption", f"Memory of all processes{budget}"), memory))
    keys = [tag("span", "waiting", class_="key waits"), " ", tag("span", "fault", class_="key faults")]
    legend = tag("p", "Marked: ", *keys, ". Breaks in the line lie between runs.") if marks else Markup()
    return section("Over time", *figures, legend, _marks_table(marks))


def _speed(before: Point, after: Point) -> float:
    seconds = after.time - before.time
    return max(0.0, (after.tokens - before.tokens) / seconds) if seconds > 0 else 0.0


def _describe(what: str, points: Sequence[Point]) -> str:
    begin, end = clock(points[0].time), clock(points[-1].time)
    runs = len({point.run for point in points})
    return f"{what} from {begin} to {end}, in {runs} run{'s'[: runs != 1]}"


def _marks_table(marks: Sequence[Mark]) -> Markup:
    if not marks:
        return tag("p", "No pause and no fault.")
    rows = [
        [clock(mark.time), _duration(mark) if mark.kind == WAIT else mark.kind, mark.text]
        for mark in marks[-_SHOWN_MARKS:]
    ]
    return tag(
        "details",
        tag("summary", f"Pauses and faults: {len(marks):,}"),
        table({"when": "name", "what": "text", "more": "text"}, rows),
    )


def _duration(mark: Mark) -> str:
    return f"waited {show_seconds(mark.end - mark.time)}" if mark.end is not None else "not over"


def render_shards(report: Report) -> Markup:
    """Every shard with its hash."""
    manifest = report.status.manifest
    if manifest is None or not manifest.shards:
        return section("Shards", tag("p", "None is finished yet."))
    shown = manifest.shards[-_SHOWN_SHARDS:]
    note = Markup()
    if len(shown) < len(manifest.shards):
        note = tag("p", f"The last {len(shown):,} of {len(manifest.shards):,}; all are in manifest.json.")
    rows = [_shard_row(record) for record in shown]
    columns = {
        "file": "name",
        "tokens": "number",
        "documents": "number",
        "bytes": "number",
        "SHA-256": "hash",
    }
    content = table(columns, rows)
    if len(shown) > 12:
        content = tag("details", tag("summary", f"All {len(shown):,} shards"), content)
    return section("Shards", note, _completeness(manifest), content)


def _completeness(manifest: Manifest) -> Markup:
    last = manifest.shards[-1].tokens
    short = last < manifest.settings["shard_tokens"] and not manifest.layout.one_file
    if manifest.complete and short:
        return tag("p", f"The last shard holds the rest, {last:,} tokens: that is expected.")
    return Markup()


def _shard_row(record: ShardRecord) -> list[str]:
    return [record.name, f"{record.tokens:,}", f"{record.documents:,}", f"{record.bytes:,}", record.sha256]


def render_settings(report: Report) -> Markup:
    """What it was made from and with."""
    manifest, beat = report.status.manifest, report.status.heartbeat
    if manifest is None:
        return Markup()
    given = {name: value for name, value in manifest.settings.items() if value not in ("", None)}
    rows = [[name, _plain(value)] for name, value in given.items()]
    if manifest.commit:
        rows.append(["commit", manifest.commit])
    rows.append(["input files", f"{len(manifest.files):,}"])
    rows += [[name, version] for name, version in manifest.versions.items()]
    if beat is not None:
        rows.append(["command", beat.invocation.command])
    return section("Settings and versions", table({"name": "name", "value": "text"}, rows, heads=True))


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def section(title: str, *content: str) -> Markup:
    """A part of the page with its heading."""
    key = title.lower().replace(" ", "-")
    return tag("section", tag("h2", title, id=key), *content, aria_labelledby=key)


def table(columns: dict[str, str], rows: Sequence[Sequence[str]], *, heads: bool = False) -> Markup:
    """`columns` are headings and their kinds (see report.css). With `heads` the first column names
    its row."""
    kinds = list(columns.values())

    def cell(column: int, text: str) -> Markup:
        if heads and column == 0:
            return tag("th", text, scope="row")
        return tag("td", text, class_=kinds[column])

    head = (tag("th", text, scope="col", class_=kind) for text, kind in columns.items())
    body = (tag("tr", *(cell(i, text) for i, text in enumerate(row))) for row in rows)
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    # What is wider than a phone is scrolled in its own frame, also with the keyboard.
    label = f"table: {', '.join(columns)}"
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def clock(seconds: float) -> str:
    """A moment, with its day."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
