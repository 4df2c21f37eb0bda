"""Make the top of the report: the state in one line, and a few large figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fineweb_shards.report.facts import Facts
from fineweb_shards.store.manifest import InputPart, Manifest
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.watching.run_record import RunRecord
from fineweb_shards.watching.snapshot import Snapshot
from fineweb_shards.watching.status import RUNNING, describe_status, resume_command

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
    status = facts.status
    return Headline(
        status.store.name,
        _describe_source(status.manifest) if status.manifest else "",
        status.state,
        describe_status(status),
        resume_command(status),
        list(_list_figures(facts)),
    )


def _describe_source(manifest: Manifest) -> str:
    """Name the dataset or the files that the shards were made from."""
    return " + ".join(filter(None, map(_describe_part, manifest.parts)))


def _describe_part(part: InputPart) -> str:
    settings, files = part.settings, part.files
    if settings.get("dataset"):
        commit = f", commit {part.commit[:10]}" if part.commit else ""
        return f"{settings['dataset']} {settings.get('name') or ''}".strip() + commit
    return str(files[0]["name"]) if len(files) == 1 else f"{len(files):,} files" if files else ""


def _list_figures(facts: Facts) -> Iterator[Figure]:
    manifest, heartbeat = facts.status.manifest, facts.status.heartbeat
    running = heartbeat is not None and facts.status.state == RUNNING
    if heartbeat is not None and running:
        yield from _figures_so_far(heartbeat.snapshot)
    if manifest is not None:
        if not running:
            yield "tokens", f"{manifest.tokens:,}"
        yield from _figures_of_shards(manifest)
    yield from _figures_of_runs(facts.history.runs)
    if manifest is not None and manifest.peak_memory_bytes:
        yield "peak memory", show_bytes(manifest.peak_memory_bytes)
    if facts.figures.statistics.tokens:
        yield "bytes per token", f"{facts.figures.statistics.bytes_per_token:.2f}"


def _figures_so_far(snapshot: Snapshot) -> Iterator[Figure]:
    share = f" ({100 * snapshot.share:.1f} %)" if snapshot.share is not None else ""
    yield "tokens so far", f"{show_count(snapshot.tokens)}{share}"
    if snapshot.seconds_left is not None:
        yield "time left", show_seconds(snapshot.seconds_left)
    if snapshot.tokens_per_second:
        yield "tokens/s now", show_count(snapshot.tokens_per_second)


def _figures_of_shards(manifest: Manifest) -> Iterator[Figure]:
    yield "documents", f"{manifest.documents:,}"
    yield "finished shards", f"{manifest.shard_count:,}"
    yield "on disk", show_bytes(sum(record.bytes for record in manifest.shards))
    if manifest.seconds and manifest.tokens:
        yield "working time, without waits", show_seconds(manifest.seconds)
        yield "tokens/s while working", show_count(manifest.tokens / manifest.seconds)


def _figures_of_runs(runs: list[RunRecord]) -> Iterator[Figure]:
    """Yield totals over all runs: how many there were, how long they waited, how much they fetched."""
    waited_seconds = sum(run.stood_still_seconds for run in runs)
    fetched_bytes = sum(run.fetched_bytes for run in runs)
    work_seconds = sum(run.work_seconds for run in runs)
    if len(runs) > 1:
        yield "runs", f"{len(runs):,}"
    if waited_seconds >= 1:
        yield "time waited", show_seconds(waited_seconds)
    if fetched_bytes:
        yield "fetched", show_bytes(fetched_bytes)
        if work_seconds:
            yield "fetched per second of work", show_bytes(fetched_bytes / work_seconds)
