"""The files that a ledger names, and where each of them is.

A file that is whole has its name, in the output folder. One that still grows is in the work folder, under
a name without `train` or `val`: a reader never sees half a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.stream.split import Side
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.types import ShardRecord


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file and its stretches, in order."""

    name: str
    side: Side
    stretches: tuple[ShardRecord, ...]

    @property
    def tokens(self) -> int:
        return sum(stretch.tokens for stretch in self.stretches)

    @property
    def documents(self) -> int:
        return sum(stretch.documents for stretch in self.stretches)

    @property
    def end_bytes(self) -> int:
        """How long the file is, as far as the ledger knows."""
        return self.stretches[-1].offset + self.stretches[-1].bytes


def list_files(records: Iterable[ShardRecord]) -> list[OutputFile]:
    """The files of a ledger, each where its first stretch comes."""
    stretches: dict[tuple[str, Side], list[ShardRecord]] = {}
    for record in records:
        stretches.setdefault((record.name, record.split), []).append(record)
    return [OutputFile(name, side, tuple(parts)) for (name, side), parts in stretches.items()]


def growing_path(path: Path) -> Path:
    """Where a file is while it grows. The name tells it from all others, but has no `train` or `val`."""
    return path.parent / WORK_FOLDER / f"{path.name.replace('train', 't').replace('val', 'v')}.tmp"


def find_file(folder: Path, name: str) -> Path | None:
    """Where a file of the ledger is; None: it is lost."""
    final = folder / name
    growing = growing_path(final)
    return growing if growing.is_file() else final if final.is_file() else None
