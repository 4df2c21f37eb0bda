"""Read what the report needs from the files of an output folder, and turn it into texts and tables, a `Section` for
each part of the page; `page.py` renders the template `page.html` with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fineweb_shards.errors import ShardError
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.store import Store
from fineweb_shards.reading.statistics import Sample, TokenStatistics, bucket_range, count_sample, spell, take_samples
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.mix_shares import shares_in, show_share
from fineweb_shards.watching.run_files import WAIT, History, PartShare, load_history
from fineweb_shards.watching.status import (
    RUNNING,
    Status,
    describe_shuffle,
    describe_status,
    read_status,
    resume_command,
)

FILE_NAME = "report.html"
_SAMPLES = 5
_SHOWN_RUNS = 100
_SHOWN_MARKS = 100
_RUN_COLUMNS = {
    "run": "number", "began": "name", "ended": "name", "how it ended": "text", "waited": "text",
    "tokens made": "number", "kept": "number", "tokens/s": "number", "fetched": "number",
}  # fmt: skip
_STRETCHES = 150  # of the chart of a mix
_SHOWN_TOKENS = 25
_SHOWN_QUARANTINED = 100
_SHOWN_SHARDS = 1000
_FOLDED_SHARDS = 12  # longer tables are collapsed
# The manifest's totals, each with the words before its noun, the noun, and the words after it.
LEFT_OUT = (
    ("skipped_documents", "Skipped", "document", " without a text (null)"),
    ("replaced_characters", "Replaced by U+FFFD", "invalid character", ""),
    ("bad_parts", "Left out", "damaged part", " (files, row groups or lines)"),
    ("token_count_mismatches", "Different token_count in the source", "document", ""),
    ("quarantined_documents", "Left out", "document", " that could not be encoded"),
    ("filtered_documents", "Left out by --where", "document", ""),
    ("unknown_documents", "Left out", "document", " without a value that --where needs"),
    ("unsampled_documents", "Left out by --sample", "document", ""),
    ("short_documents", "Left out by --min-tokens", "document", ""),
    ("long_documents", "Left out by --max-document-tokens", "document", ""),
)

Section = dict[str, Any]  # a part of the page, by the names in page.html


def report_path(folder: Path) -> Path:
    return folder / WORK_FOLDER / FILE_NAME


@dataclass(frozen=True)
class Facts:
    status: Status
    history: History
    figures: TokenStatistics | None = None  # of a sample of the tokens
    whole: bool = False  # of all tokens, with the first and last document if shards are in order
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no statistics
    gathered: float = field(default_factory=time.time)  # seconds since 1970


def gather_facts(store: Store, *, alive: bool | None = None) -> Facts:
    """Read the files of a folder; no statistics if a shard is damaged. `alive`: whether a run is active there."""
    status, history = read_status(store, alive=alive), load_history(store.folder)
    if status.manifest is None or not status.manifest.shards:
        return Facts(status, history)
    records = status.manifest.shards
    shard_format = status.manifest.shard_format
    try:
        in_order = status.manifest.split_rule.is_in_order
        figures, whole = count_sample(store, shard_format, records, in_order=in_order)
        if whole and in_order:
            figures = figures.closed(eot_first=shard_format.layout.eot_first)
        return Facts(status, history, figures, whole, take_samples(store, shard_format, records, _SAMPLES))
    except ShardError as error:
        return Facts(status, history, problem=error.message)


@dataclass(frozen=True, slots=True)
class Table:
    columns: Mapping[str, str]  # headings and their kinds: number, name, text, token, hash or part, see page.css
    rows: Sequence[Sequence[str]]
    heads: bool = False  # the first cell of a row names it
    bars: Sequence[float] = ()  # a value above 0 for each row, drawn beside its last cell


def show_moment(seconds: float) -> str:
    """Format seconds since 1970 as `2026-11-17 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


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
    if facts.figures is not None:
        yield "bytes per token", f"{facts.figures.bytes_per_token:.2f}"


def list_runs(facts: Facts) -> Section | None:
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
    marks, rows = facts.history.marks, []
    for mark in marks[-_SHOWN_MARKS:]:
        waited = "still waiting" if mark.end is None else f"waited {show_seconds(mark.end - mark.time)}"
        rows.append([show_moment(mark.time), waited if mark.kind == WAIT else mark.kind, mark.text])
    table = Table({"when": "name", "what": "text", "more": "text"}, rows)
    summary = f"All {len(marks):,}" if len(marks) == len(rows) else f"The last {len(rows):,} of {len(marks):,}"
    return {"table": table, "summary": summary} if marks else None


def list_parts(facts: Facts) -> Section | None:
    """Return a table of the parts of a mix and, unless it is shuffled, a chart; None if the input is not a mix."""
    manifest = facts.status.manifest
    shares = shares_in(manifest) if manifest is not None else ()
    if manifest is None or not shares:
        return None
    rows = [
        [
            str(number),
            part.label,
            show_share(part.requested_share),
            show_share(part.share),
            f"{part.tokens:,}",
            f"{part.documents:,}",
            f"{part.epoch:,} of {part.epochs:,}{', exhausted' if part.exhausted else ''}",
        ]
        for number, part in enumerate(shares, 1)
    ]
    numbers = dict.fromkeys(("requested", "achieved", "tokens", "documents"), "number")
    table = Table({"part": "part", "input": "text", **numbers, "epoch": "name"}, rows)
    # A shard of a shuffled stream is a random sample of the mix.
    return {"table": table, "chart": None if manifest.is_shuffled else _stack_shares(manifest, shares)}


def _stack_shares(manifest: Manifest, shares: Sequence[PartShare]) -> Section | None:
    """Return a chart of the shares along the stream, stacked up to 100 %, in a space 1,000 wide and 100 high, which the
    page stretches: the outline of each part as an SVG path, and lines between them at the requested shares. None before
    the first shard is finished."""
    # Records of one checkpoint, and of validation files, repeat the previous counts.
    taken = (tuple(part.tokens for part in record.taken) for record in manifest.shards)
    counts = [*dict.fromkeys([(0,) * len(shares), *taken])]
    last = len(counts) - 1
    if not last:
        return None
    stretches = min(last, _STRETCHES)
    thin = np.array([counts[round(number * last / stretches)] for number in range(stretches + 1)], np.float64)
    made = np.diff(thin, axis=0)
    ends = 1000 * thin.sum(axis=1) / thin[-1].sum()
    edges = 100 * np.maximum(0, 1 - np.cumsum(made, axis=1) / made.sum(axis=1, keepdims=True))
    columns = [np.full(stretches, 100.0), *edges.T]
    places = np.repeat(ends, 2)[1:-1]  # each edge is a flight of steps
    paths = []
    for lower, upper in pairwise(columns):
        heights = np.concatenate([np.repeat(upper, 2), np.repeat(lower, 2)[::-1]])
        outline = zip([*places, *places[::-1]], heights, strict=True)
        paths.append("M" + "L".join(f"{place:.2f} {height:.2f}" for place, height in outline) + "Z")
    return {
        "title": f"Shares of {len(shares):,} parts along the stream",
        "areas": [(part.label, path) for part, path in zip(shares, paths, strict=True)],
        "limits": [100 - 100 * share for share in accumulate(part.requested_share for part in shares)][:-1],
        "tokens": show_count(thin[-1].sum()),
    }


def measure_lengths(facts: Facts) -> Section | None:
    figures = facts.figures
    if figures is None or not figures.documents:
        return None
    used = [bucket for bucket in range(len(figures.lengths)) if figures.lengths[bucket]]
    counts = {bucket: int(figures.lengths[bucket]) for bucket in range(used[0], used[-1] + 1)}
    rows = []
    for bucket, count in counts.items():
        share = f"{100 * count / figures.documents:.1f} %"
        rows.append(["{:,} to {:,}".format(*bucket_range(bucket)), f"{count:,}", share])
    columns = {"tokens": "name", "documents": "number", "share": "number"}
    table = Table(columns, rows, bars=list(counts.values()))
    return {"mean": f"{figures.mean_tokens:,.0f}", "longest": f"{figures.longest:,}", "table": table}


def list_tokens(facts: Facts) -> Section | None:
    figures = facts.figures
    if figures is None:
        return None
    text_tokens = max(1, figures.tokens - figures.boundaries)
    frequent = figures.most_frequent(_SHOWN_TOKENS)
    rows = [
        [spell(token, figures.vocabulary), str(token), f"{count:,}", f"{100 * count / text_tokens:.2f} %"]
        for token, count in frequent
    ]
    columns = {"token": "token", "id": "number", "times": "number", "share": "number"}
    table = Table(columns, rows, bars=[count for _, count in frequent])
    return {"bytes_per_token": f"{figures.bytes_per_token:.2f}", "table": table}


def describe_basis(facts: Facts) -> str:
    """Return a sentence that says which tokens were counted."""
    figures, manifest = facts.figures, facts.status.manifest
    if figures is None or manifest is None:
        return ""
    if not facts.whole:
        return f"Counted over a sample of {show_count(figures.tokens)} tokens, taken throughout the folder."
    without = "" if manifest.split_rule.is_in_order else ", without documents that continue in the next shard"
    return f"Counted over all {figures.tokens:,} tokens of the finished shards{without}."


def count_left_out(facts: Facts) -> Section | None:
    """Return the counts above 0 of what was left out or changed; None before the first manifest."""
    manifest = facts.status.manifest
    if manifest is None:
        return None
    # The totals of a complete build include the input after the last shard.
    counts = {**asdict(manifest.counts), **manifest.totals, "quarantined_documents": len(manifest.quarantined)}
    rows = [[f"{what}: {noun}s{more}", f"{counts[name]:,}"] for name, what, noun, more in LEFT_OUT if counts.get(name)]
    table = Table({"what": "text", "count": "number"}, rows, heads=True) if rows else None
    lost = [
        [
            str(manifest.parts[one.part].files[one.file]["name"]),
            f"{one.row:,}" if one.row is not None else "",
            one.id or "",
            show_bytes(one.text_bytes),
            one.cause,
            one.begins,
        ]
        for one in manifest.quarantined[:_SHOWN_QUARANTINED]
    ]
    columns = dict.fromkeys(("file", "row", "id", "size", "cause", "begins"), "text")
    return {"counts": table, "quarantined": Table(columns, lost) if lost else None}


def list_shards(facts: Facts) -> Section | None:
    manifest = facts.status.manifest
    if manifest is None or not manifest.shards:
        return None
    count, last_tokens = len(manifest.shards), manifest.shards[-1].tokens
    rows = [
        [record.name, f"{record.tokens:,}", f"{record.documents:,}", f"{record.bytes:,}", record.sha256]
        for record in manifest.shards[-_SHOWN_SHARDS:]
    ]
    notes = []
    if count > _SHOWN_SHARDS:
        notes.append(f"The last {_SHOWN_SHARDS:,} of {count:,}; manifest.json has all of them.")
    short = last_tokens < manifest.settings["shard_tokens"] and not manifest.layout.one_file
    if manifest.complete and short:
        notes.append(f"The last shard holds the rest, {last_tokens:,} tokens: that is expected.")
    # A growing file has a row for each checkpoint.
    noun = "shard" if manifest.shard_count == count else "segment"
    summary = f"{'All' if len(rows) == count else 'The last'} {show_number_of(len(rows), noun)}"
    numbers = dict.fromkeys(("tokens", "documents", "bytes"), "number")
    table = Table({"file": "name", **numbers, "SHA-256": "hash"}, rows)
    return {"table": table, "notes": notes, "folded": len(rows) > _FOLDED_SHARDS, "summary": summary}


def list_settings(facts: Facts) -> Table | None:
    manifest, heartbeat = facts.status.manifest, facts.status.heartbeat
    if manifest is None:
        return None
    rows: list[list[str]] = []
    inputs = [{**part.settings, "commit": part.commit} for part in manifest.parts]
    for settings in (*inputs, manifest.settings):
        given = {name: value for name, value in settings.items() if value not in ("", None)}
        rows += [[name, f"{value:,}" if type(value) is int else str(value)] for name, value in given.items()]
    if manifest.is_shuffled:
        rows = [row if row[0] != "shuffle" else ["shuffle", describe_shuffle(manifest)] for row in rows]
    rows.append(["input files", f"{sum(len(part.files) for part in manifest.parts):,}"])
    rows.append(["for validation", manifest.split_rule.describe()])
    rows += [[name, version] for name, version in manifest.versions.items()]
    if heartbeat is not None:
        rows.append(["command", heartbeat.invocation.command])
    return Table({"name": "name", "value": "text"}, rows, heads=True)
