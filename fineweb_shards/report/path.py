"""The path of the report, in a module that imports no template engine."""

from __future__ import annotations

from pathlib import Path

from fineweb_shards.system.durable import WORK_FOLDER

FILE_NAME = "report.html"


def report_path(folder: Path) -> Path:
    """Return the path of the report about an output folder."""
    return folder / WORK_FOLDER / FILE_NAME
