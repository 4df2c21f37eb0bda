"""The report's list of runs: each start and resume, how it ended, what it made, what it waited for."""

from __future__ import annotations

from itertools import pairwise

from fineweb_shards.history import WAIT, Mark
from fineweb_shards.markup import Markup, tag
from fineweb_shards.report import Report
from fineweb_shards.report_run import clock, section, table
from fineweb_shards.run_record import RunRecord
from fineweb_shards.status import RUNNING
from fineweb_shards.units import show_bytes, show_count, show_seconds

_SHOWN_RUNS = 100
_SHOWN_WAITS = 3  # of a run, with their reasons; all are in the list of pauses and faults
KILLED = "killed, or a power cut"


def render_runs(report: Report) -> Markup:
    """A row for each run."""
    runs = report.history.runs[-_SHOWN_RUNS:]
    if not runs:
        return Markup()
    kept = _kept_tokens(runs, report)
    network = any(run.fetched_bytes for run in runs)
    columns = {"run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
               "tokens made": "number", "kept": "number", "a second of work": "number"}  # fmt: skip
    if network:
        columns["fetched"] = "number"
    rows = []
    for run, tokens in zip(runs, kept, strict=True):
        working = run is runs[-1] and report.status.state == RUNNING
        speed = show_count(run.new_tokens / run.work_seconds) if run.work_seconds >= 1 else ""
        row = [
            f"{run.number:,}",
            clock(run.begin),
            "" if working else clock(run.end),
            "it is at work" if working else run.ending or KILLED,
            _waits(run, report.history.marks),
            show_count(run.new_tokens),
            "" if working else show_count(tokens),
            speed,
        ]
        rows.append([*row, show_bytes(run.fetched_bytes)] if network else row)
    note = "What is not kept belonged to a shard that was not finished; the next run makes it again."
    lost = any(run.new_tokens > tokens for run, tokens in zip(runs, kept, strict=True))
    return section("Runs", tag("p", note) if lost else Markup(), table(columns, rows))


def _kept_tokens(runs: list[RunRecord], report: Report) -> list[int]:
    """What of each run is in finished shards: the next one began behind it."""
    manifest = report.status.manifest
    ends = [after.first_tokens for _, after in pairwise(runs)]
    ends.append(manifest.tokens if manifest is not None else runs[-1].first_tokens)
    return [max(0, end - run.first_tokens) for run, end in zip(runs, ends, strict=True)]


def _waits(run: RunRecord, marks: list[Mark]) -> str:
    """How long and how often for each cause, and the first reasons with their lengths."""
    waits = [mark for mark in marks if mark.kind == WAIT and run.begin <= mark.time <= run.end]
    if not waits:
        return run.describe_waits() or "never"
    lengths = (show_seconds((mark.end if mark.end is not None else run.end) - mark.time) for mark in waits)
    reasons = [f"{length}: {mark.text}" for length, mark in zip(lengths, waits, strict=True)]
    more = f" … and {len(waits) - _SHOWN_WAITS:,} more" if len(waits) > _SHOWN_WAITS else ""
    return f"{run.describe_waits()} ({'; '.join(reasons[:_SHOWN_WAITS])}{more})"
