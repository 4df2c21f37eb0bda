"""The report's list of runs: each start and resume, how it ended, what it made, what it waited for."""

from __future__ import annotations

from itertools import pairwise

from fineweb_shards.markup import Markup, tag
from fineweb_shards.report import Report
from fineweb_shards.report_run import clock, section, table
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.history import WAIT
from fineweb_shards.watching.run_record import RunRecord
from fineweb_shards.watching.status import RUNNING

_SHOWN_RUNS = 100
_SHOWN_WAITS = 100
KILLED = "killed, or a power cut"


def render_runs(report: Report) -> Markup:
    """A row for each run, and one for each wait."""
    runs = report.history.runs[-_SHOWN_RUNS:]
    if not runs:
        return Markup()
    kept = _kept_tokens(runs, report)
    columns = {"run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
               "tokens made": "number", "kept": "number", "a second of work": "number"}  # fmt: skip
    network = any(run.fetched_bytes for run in runs)
    if network:
        columns["fetched"] = "number"
    rows = []
    for run, tokens in zip(runs, kept, strict=True):
        working = run is runs[-1] and report.status.state == RUNNING
        made = max(run.new_tokens, tokens)  # a killed run's last seconds are not in the history
        row = [
            f"{run.number:,}",
            clock(run.begin),
            "" if working else _end(run.begin, run.end),
            "it is at work" if working else run.ending or KILLED,
            run.describe_waits() or "never",
            show_count(made),
            "" if working else show_count(tokens),
            show_count(made / run.work_seconds) if run.work_seconds >= 1 else "",
        ]
        rows.append([*row, show_bytes(run.fetched_bytes)] if network else row)
    note = "What is not kept belonged to a shard that was not finished; the next run makes it again."
    lost = any(run.new_tokens > tokens for run, tokens in zip(runs, kept, strict=True))
    return section(
        "Runs", table(columns, rows), tag("p", note) if lost else Markup(), _waits_table(runs, report)
    )


def _kept_tokens(runs: list[RunRecord], report: Report) -> list[int]:
    """What of each run is in finished shards: the next one began behind it."""
    manifest = report.status.manifest
    ends = [after.first_tokens for _, after in pairwise(runs)]
    ends.append(manifest.tokens if manifest is not None else runs[-1].first_tokens)
    return [max(0, end - run.first_tokens) for run, end in zip(runs, ends, strict=True)]


def _waits_table(runs: list[RunRecord], report: Report) -> Markup:
    """Each wait: when, how long, for what."""
    waits = [mark for mark in report.history.marks if mark.kind == WAIT][-_SHOWN_WAITS:]
    if not waits:
        return Markup()
    rows = []
    for mark in waits:
        number = next((f"{run.number:,}" for run in reversed(runs) if run.begin <= mark.time), "")
        length = show_seconds(mark.end - mark.time) if mark.end is not None else "not over"
        rows.append([number, clock(mark.time), length, mark.text])
    return table({"run": "number", "waited from": "name", "for": "name", "why": "text"}, rows)


def _end(begin: float, end: float) -> str:
    """The time alone where the day is the same."""
    day = len("2026-11-17 ")
    return clock(end)[day:] if clock(end)[:day] == clock(begin)[:day] else clock(end)
