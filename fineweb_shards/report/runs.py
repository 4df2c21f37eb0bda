"""Make the top of the report, the state in one line and a few large figures, and below it the list of runs:
each start and resume, how it ended, what it made, what it waited for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from fineweb_shards.report.facts import Facts, Table, show_moment
from fineweb_shards.store.manifest import InputPart
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.run_files import WAIT, Mark, RunRecord
from fineweb_shards.watching.status import RUNNING, describe_status, resume_command

_SHOWN_RUNS = 100
_SHOWN_WAITS = 100
_KILLED = "killed, or a power cut"
_COLUMNS = {
    "run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
    "tokens made": "number", "kept": "number", "tokens/s": "number", "fetched": "number",
}  # fmt: skip
_WAIT_COLUMNS = {"run": "number", "waited from": "name", "for": "name", "why": "text"}
_MOST_COLUMNS = 6  # see page.css
Figure = tuple[str, str]  # name and value


@dataclass(frozen=True, slots=True)
class Headline:
    """The content of the top of the page."""

    name: str  # of the folder
    source: str  # what the shards were made from
    state: str
    words: str  # the state in a sentence
    command: str | None  # that resumes the build
    figures: list[Figure]

    @property
    def columns(self) -> int:
        """How many figures stand in a row on a wide screen: rows as equal as can be, so that none is nearly
        empty."""
        rows = math.ceil(len(self.figures) / _MOST_COLUMNS)
        return math.ceil(len(self.figures) / max(1, rows))


def make_headline(facts: Facts) -> Headline:
    """Choose the facts for the top of the page."""
    status, source = facts.status, ""
    if status.manifest is not None:
        source = " + ".join(filter(None, map(_describe_part, status.manifest.parts)))
    return Headline(
        status.store.name,
        source,
        status.state,
        describe_status(status),
        resume_command(status),
        list(_list_figures(facts)),
    )


def _describe_part(part: InputPart) -> str:
    """Return the dataset or the files that shards were made from."""
    settings, files = part.settings, part.files
    if settings.get("dataset"):
        commit = f", commit {part.commit[:10]}" if part.commit else ""
        return f"{settings['dataset']} {settings.get('name') or ''}".strip() + commit
    return str(files[0]["name"]) if len(files) == 1 else f"{len(files):,} files" if files else ""


def _list_figures(facts: Facts) -> Iterator[Figure]:
    manifest, heartbeat, runs = facts.status.manifest, facts.status.heartbeat, facts.history.runs
    running = heartbeat is not None and facts.status.state == RUNNING
    if heartbeat is not None and running:
        now = heartbeat.snapshot
        share = f" ({100 * now.share:.1f} %)" if now.share is not None else ""
        yield "tokens so far", f"{show_count(now.tokens)}{share}"
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


@dataclass(frozen=True, slots=True)
class Runs:
    """A row for each run, and one for each wait."""

    table: Table
    waits: Table | None
    lost_tokens: bool  # a run made more tokens than were kept


def list_runs(facts: Facts) -> Runs | None:
    """Return the list of runs; None if no run is known."""
    runs, manifest = facts.history.runs[-_SHOWN_RUNS:], facts.status.manifest
    if not runs:
        return None
    # The tokens of a run that are in finished shards: the next run began after those.
    ends = [after.first_tokens for _, after in pairwise(runs)]
    ends.append(manifest.tokens if manifest is not None else runs[-1].first_tokens)
    kept = [(run, max(0, end - run.first_tokens)) for run, end in zip(runs, ends, strict=True)]
    active = runs[-1] if facts.status.state == RUNNING else None
    table = Table(_COLUMNS, [_run_row(run, tokens, active=run is active) for run, tokens in kept])
    if not any(run.fetched_bytes for run in runs):
        columns = dict(list(table.columns.items())[:-1])
        table = Table(columns, [row[:-1] for row in table.rows])
    waits = [mark for mark in facts.history.marks if mark.kind == WAIT][-_SHOWN_WAITS:]
    waits_table = Table(_WAIT_COLUMNS, [_wait_row(mark, runs) for mark in waits]) if waits else None
    return Runs(table, waits_table, any(run.new_tokens > tokens for run, tokens in kept))


def _run_row(run: RunRecord, kept_tokens: int, *, active: bool) -> list[str]:
    made_tokens = max(run.new_tokens, kept_tokens)  # a killed run's last seconds are not in the history
    began, ended = show_moment(run.begin), show_moment(run.end)
    if began.split()[0] == ended.split()[0]:
        ended = ended.split()[1]  # the same day
    return [
        f"{run.number:,}",
        began,
        "" if active else ended,
        "running" if active else run.ending or _KILLED,
        run.describe_waits() or "never",
        show_count(made_tokens),
        "" if active else show_count(kept_tokens),
        show_count(made_tokens / run.work_seconds) if run.work_seconds >= 1 else "",
        show_bytes(run.fetched_bytes),
    ]


def _wait_row(mark: Mark, runs: list[RunRecord]) -> list[str]:
    number = next((f"{run.number:,}" for run in reversed(runs) if run.begin <= mark.time), "")
    length = show_seconds(mark.end - mark.time) if mark.end is not None else "still waiting"
    return [number, show_moment(mark.time), length, mark.text]
