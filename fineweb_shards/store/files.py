"""The files that a manifest names, and where each of them is.

A file that is whole has its name, in the output folder. One that still grows is in the work folder, under
a name without `train` or `val`: a reader never sees half a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.types import ShardRecord, Split


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file and its segments, in order."""

    name: str
    split: Split
    segments: tuple[ShardRecord, ...]

    @property
    def tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    @property
    def documents(self) -> int:
        return sum(segment.documents for segment in self.segments)

    @property
    def end_bytes(self) -> int:
        """How long the file is, as far as the manifest knows."""
        return self.segments[-1].offset + self.segments[-1].bytes


def list_files(records: Iterable[ShardRecord]) -> list[OutputFile]:
    """The files of a manifest, each where its first segment comes."""
    segments: dict[tuple[str, Split], list[ShardRecord]] = {}
    for record in records:
        segments.setdefault((record.name, record.split), []).append(record)
    return [OutputFile(name, split, tuple(parts)) for (name, split), parts in segments.items()]


def growing_path(path: Path) -> Path:
    """Where a file is while it grows. The name tells it from all others, but has no `train` or `val`."""
    return path.parent / WORK_FOLDER / f"{path.name.replace('train', 't').replace('val', 'v')}.tmp"


def find_file(folder: Path, name: str) -> Path | None:
    """Where a file of the manifest is; None: it is lost."""
    final = folder / name
    growing = growing_path(final)
    return growing if growing.is_file() else final if final.is_file() else None
