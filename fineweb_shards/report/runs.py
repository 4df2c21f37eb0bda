"""Make the report's list of runs: each start and resume, how it ended, what it made, what it waited for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fineweb_shards.report.facts import Facts
from fineweb_shards.report.table import Table, show_moment
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.history import WAIT, Mark, RunRecord
from fineweb_shards.watching.status import RUNNING

_SHOWN_RUNS = 100
_SHOWN_WAITS = 100
_KILLED = "killed, or a power cut"
_COLUMNS = {
    "run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
    "tokens made": "number", "kept": "number", "tokens/s": "number", "fetched": "number",
}  # fmt: skip
_WAIT_COLUMNS = {"run": "number", "waited from": "name", "for": "name", "why": "text"}


@dataclass(frozen=True, slots=True)
class Runs:
    """A row for each run, and one for each wait."""

    table: Table
    waits: Table | None
    lost_tokens: bool  # a run made more tokens than were kept


def list_runs(facts: Facts) -> Runs | None:
    """Return the list of runs; None if no run is known."""
    runs = facts.history.runs[-_SHOWN_RUNS:]
    if not runs:
        return None
    kept = list(zip(runs, _kept_tokens(runs, facts), strict=True))
    active = runs[-1] if facts.status.state == RUNNING else None
    rows = [_run_row(run, tokens, active=run is active) for run, tokens in kept]
    table = Table(_COLUMNS, rows)
    if not any(run.fetched_bytes for run in runs):
        table = table.without_last_column()
    return Runs(table, _waits_table(runs, facts), any(run.new_tokens > tokens for run, tokens in kept))


def _kept_tokens(runs: list[RunRecord], facts: Facts) -> list[int]:
    """Return how many tokens of each run are in finished shards: the next run began after those."""
    manifest = facts.status.manifest
    ends = [after.first_tokens for _, after in pairwise(runs)]
    ends.append(manifest.tokens if manifest is not None else runs[-1].first_tokens)
    return [max(0, end - run.first_tokens) for run, end in zip(runs, ends, strict=True)]


def _run_row(run: RunRecord, kept_tokens: int, *, active: bool) -> list[str]:
    made_tokens = max(run.new_tokens, kept_tokens)  # a killed run's last seconds are not in the history
    return [
        f"{run.number:,}",
        show_moment(run.begin),
        "" if active else _show_end(run.begin, run.end),
        "running" if active else run.ending or _KILLED,
        run.describe_waits() or "never",
        show_count(made_tokens),
        "" if active else show_count(kept_tokens),
        show_count(made_tokens / run.work_seconds) if run.work_seconds >= 1 else "",
        show_bytes(run.fetched_bytes),
    ]


def _show_end(begin: float, end: float) -> str:
    """Format the end of a run; without the date if it is that of the beginning."""
    day, time_of_day = show_moment(end).split(" ")
    return time_of_day if show_moment(begin).startswith(day) else show_moment(end)


def _waits_table(runs: list[RunRecord], facts: Facts) -> Table | None:
    """Return the table of waits: when, how long, for what; None if there were none."""
    waits = [mark for mark in facts.history.marks if mark.kind == WAIT][-_SHOWN_WAITS:]
    return Table(_WAIT_COLUMNS, [_wait_row(mark, runs) for mark in waits]) if waits else None


def _wait_row(mark: Mark, runs: list[RunRecord]) -> list[str]:
    number = next((f"{run.number:,}" for run in reversed(runs) if run.begin <= mark.time), "")
    length = show_seconds(mark.end - mark.time) if mark.end is not None else "still waiting"
    return [number, show_moment(mark.time), length, mark.text]
