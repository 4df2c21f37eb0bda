"""`report`: everything that is known about a folder, gathered for one page, `.fineweb-shards/report.html`.

A run rewrites the page every minute and at its end; `fineweb-shards report DIR` makes it again at any time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from fineweb_shards.errors import DamageError
from fineweb_shards.reading.folder_statistics import FolderStatistics, complete_folder_statistics
from fineweb_shards.reading.samples import Sample, take_samples
from fineweb_shards.system.durable import WORK_FOLDER, output_error, write_quickly
from fineweb_shards.units import show_bytes
from fineweb_shards.watching.history import History, load_history
from fineweb_shards.watching.run_record import RunRecord
from fineweb_shards.watching.status import Status, read_status

FILE_NAME = "report.html"
_SAMPLES = 5


@dataclass(frozen=True)
class Report:
    """What the page shows."""

    status: Status
    history: History
    survey: FolderStatistics = field(default_factory=FolderStatistics)
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no figures about documents
    made: float = field(default_factory=time.time)  # seconds since 1970


def gather_report(folder: Path, *, alive: bool | None = None) -> Report:
    """Read everything; a damaged shard costs the figures about documents, not the page."""
    status, history = read_status(folder, alive=alive), load_history(folder)
    if status.manifest is None or not status.manifest.shards:
        return Report(status, history)
    records = status.manifest.shards
    shard_format = status.manifest.shard_format
    try:
        survey = complete_folder_statistics(
            folder, shard_format, records, in_order=status.manifest.split_rule.is_in_order
        )
        return Report(status, history, survey, take_samples(folder, shard_format, records, _SAMPLES))
    except DamageError as error:
        return Report(status, history, problem=error.message)


def closing_lines(folder: Path, run: RunRecord) -> list[str]:
    """The last words of a run: what it fetched and waited for, and where the page about it is."""
    rows = []
    if run.fetched_bytes:
        speed = show_bytes(run.fetched_bytes / max(run.work_seconds, 1e-9))
        rows.append(("fetched", f"{show_bytes(run.fetched_bytes)}, {speed}/s on average"))
    if waits := run.describe_waits():
        rows.append(("waited", waits))
    page = folder / WORK_FOLDER / FILE_NAME
    if page.is_file():
        rows.append(("report", str(page)))
    return [f"{name:<10} {text}" for name, text in rows]


def write_report(folder: Path, *, alive: bool | None = None) -> Path:
    """Make the page; returns where it is. A run knows itself whether it is `alive`."""
    # Imported here: pygal is needed for nothing else.
    from fineweb_shards.report_page import render_page

    path = folder / WORK_FOLDER / FILE_NAME
    page = render_page(gather_report(folder, alive=alive))
    try:
        path.parent.mkdir(exist_ok=True)
        write_quickly(path, page.encode())
    except OSError as error:
        raise output_error(path, error) from error
    return path
