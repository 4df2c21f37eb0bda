"""Read everything that the report needs from the files of an output folder.

Next, `runs.py` and `contents.py` turn these facts into texts and tables, a `Section` for each part of the page,
and `page.py` renders the template `page.html` with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ShardError
from fineweb_shards.reading.statistics import FolderStatistics, Sample, count_sample, take_samples
from fineweb_shards.store.store import Store
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.watching.run_files import History, load_history
from fineweb_shards.watching.status import Status, read_status

_SAMPLES = 5
FILE_NAME = "report.html"


def report_path(folder: Path) -> Path:
    return folder / WORK_FOLDER / FILE_NAME


@dataclass(frozen=True)
class Facts:
    """The input of a report."""

    status: Status
    history: History
    figures: FolderStatistics = field(default_factory=FolderStatistics)
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no statistics
    gathered: float = field(default_factory=time.time)  # seconds since 1970


def gather_facts(store: Store, *, alive: bool | None = None) -> Facts:
    """Read the files of a folder. If a shard is damaged or unreadable, the page has no statistics. `alive`: whether a
    run is active there, if known."""
    status, history = read_status(store, alive=alive), load_history(store.folder)
    if status.manifest is None or not status.manifest.shards:
        return Facts(status, history)
    records = status.manifest.shards
    shard_format = status.manifest.shard_format
    try:
        figures = count_sample(store, shard_format, records, in_order=status.manifest.split_rule.is_in_order)
        return Facts(status, history, figures, take_samples(store, shard_format, records, _SAMPLES))
    except ShardError as error:
        return Facts(status, history, problem=error.message)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    columns: Mapping[str, str]  # headings and their kinds: number, name, text, token, hash or part, see page.css
    rows: Sequence[Sequence[str]]
    heads: bool = False  # the first cell of a row names it
    bars: Sequence[float] = ()  # a value above 0 for each row, drawn beside its last cell


Section = dict[str, Any]  # a part of the page, by the names in page.html


def show_moment(seconds: float) -> str:
    """Format seconds since 1970 as `2026-11-17 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
