"""Where the page about a folder is."""

from __future__ import annotations

from pathlib import Path

from fineweb_shards.system.durable import WORK_FOLDER

FILE_NAME = "report.html"


def report_path(folder: Path) -> Path:
    """Beside the other files that are about the shards."""
    return folder / WORK_FOLDER / FILE_NAME
