"""A config turned into the parts that do the work: what `plan` shows and `build` runs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fineweb_shards
from fineweb_shards.config import Config
from fineweb_shards.guard import Budget, plan_budget
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout
from fineweb_shards.manifest import FILE_NAME
from fineweb_shards.sources import open_source
from fineweb_shards.sources.base import ReadSettings, Source
from fineweb_shards.sources.files import find_files
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.base import Engine


@dataclass(frozen=True)
class Job:
    """Everything decided, nothing begun."""

    config: Config
    folder: Path
    layout: Layout
    engine: type[Engine]
    source: Source
    budget: Budget

    def versions(self) -> dict[str, str]:
        """For the manifest. They may differ between two resumes: the bytes can't."""
        return {
            "fineweb_shards": fineweb_shards.__version__,
            self.engine.name: str(self.engine.installed_version()),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }


def make_job(config: Config) -> Job:
    """Resolve names, find the files, divide the memory; a mistake in any of them is told here."""
    config.check()
    layout = get_layout(config.layout)
    engine = resolve_engine(config.engine)
    settings = ReadSettings(
        text_column=config.text_column,
        separator=config.separator,
        batch_bytes=config.batch_bytes,
        skip_bad=config.on_bad_file == "skip",
    )
    budget = plan_budget(config.workers, config.max_memory, config.batch_bytes)
    folder = Path(config.out).expanduser()

    def is_output(path: Path) -> bool:
        ours = path.name == FILE_NAME or layout.owns(path.name)
        return ours and path.parent.resolve() == folder.resolve()

    source = open_source(find_files(config.input, config.format, is_output), settings)
    return Job(config, folder, layout, engine, source, budget)
