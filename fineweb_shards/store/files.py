"""List the files that a manifest names, and find each of them.

A finished file has its final name, in the output folder. One that still grows is in the work folder, under
a name without `train` or `val`, so that a reader never opens an incomplete file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.system.own_files import is_plain_file
from fineweb_shards.types import ShardRecord, Split


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of tokens and its segments, in order."""

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
        """The length of the file according to the manifest."""
        return self.segments[-1].offset + self.segments[-1].bytes


def list_files(records: Iterable[ShardRecord]) -> list[OutputFile]:
    """Group a manifest's records by file, in the order of each file's first record."""
    segments: dict[tuple[str, Split], list[ShardRecord]] = {}
    for record in records:
        segments.setdefault((record.name, record.split), []).append(record)
    return [OutputFile(name, split, tuple(parts)) for (name, split), parts in segments.items()]


def growing_path(path: Path) -> Path:
    """Return where a file is while it grows: under a unique name that contains no `train` or `val`."""
    return path.parent / WORK_FOLDER / f"{path.name.replace('train', 't').replace('val', 'v')}.tmp"


def find_file(folder: Path, name: str) -> Path | None:
    """Return where a file of the manifest is, growing or finished; None if it is missing."""
    final = folder / name
    growing = growing_path(final)
    return growing if is_plain_file(growing) else final if final.is_file() else None
