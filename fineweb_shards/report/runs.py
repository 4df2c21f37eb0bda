"""Make the report's sections about the runs: state and key figures, the list of runs (start, end, results), and
their waits and faults."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fineweb_shards.report.facts import Facts, Section, Table, show_moment
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.run_files import WAIT
from fineweb_shards.watching.status import RUNNING, describe_status, resume_command

_SHOWN_RUNS = 100
_SHOWN_MARKS = 100
_RUN_COLUMNS = {
    "run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
    "tokens made": "number", "kept": "number", "tokens/s": "number", "fetched": "number",
}  # fmt: skip


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
    rows = []
    for run, kept_tokens in kept:
        made_tokens = max(run.new_tokens, kept_tokens)  # the history lacks a killed run's last seconds
        began, ended = show_moment(run.begin), show_moment(run.end)
        if began.split()[0] == ended.split()[0]:
            ended = ended.split()[1]  # the same day
        row = [
            f"{run.number:,}",
            began,
            "" if run is active else ended,
            "running" if run is active else run.ending or "killed, or a power cut",
            run.describe_waits() or "never",
            show_count(made_tokens),
            "" if run is active else show_count(kept_tokens),
            show_count(made_tokens / run.work_seconds) if run.work_seconds >= 1 else "",
            show_bytes(run.fetched_bytes),
        ]
        rows.append(row)
    shown = len(_RUN_COLUMNS) if any(run.fetched_bytes for run in runs) else len(_RUN_COLUMNS) - 1
    table = Table(dict([*_RUN_COLUMNS.items()][:shown]), [row[:shown] for row in rows])
    lost_tokens = any(run.new_tokens > tokens for run, tokens in kept)
    return {"table": table, "lost_tokens": lost_tokens, "passes": manifest is not None and manifest.is_shuffled}


def list_marks(facts: Facts) -> Section | None:
    """Return a table with a row for each wait and each fault; None if there were none."""
    marks, rows = facts.history.marks, []
    for mark in marks[-_SHOWN_MARKS:]:
        waited = "still waiting" if mark.end is None else f"waited {show_seconds(mark.end - mark.time)}"
        rows.append([show_moment(mark.time), waited if mark.kind == WAIT else mark.kind, mark.text])
    table = Table({"when": "name", "what": "text", "more": "text"}, rows)
    summary = f"All {len(marks):,}" if len(marks) == len(rows) else f"The last {len(rows):,} of {len(marks):,}"
    return {"table": table, "summary": summary} if marks else None
