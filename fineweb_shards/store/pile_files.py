"""Make the files of a shuffle's first pass, and make them durable. What is in them is in formats/piles.py."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.events import Observer
from fineweb_shards.formats.piles import digest_of, list_path, pile_errors, pile_name
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.shard_files import seal_segment
from fineweb_shards.store.store import Segment, Store
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.durable import output_errors, sync_folder
from fineweb_shards.system.own_files import make_folder, open_own


@dataclass(frozen=True)
class PileWork:
    """What was added to some piles, to be made durable and hashed; `path` is their folder."""

    path: Path
    ranges: tuple[tuple[int, int, int], ...]  # number, and first and last byte of each


def seal(
    observer: Observer, work: Segment | PileWork, shard_format: ShardFormat, store: Store, max_wait_seconds: float
) -> str:
    """Seal a segment, or make durable what was added to piles; return the SHA-256 of the segment, or those of the
    piles one after the other."""
    if isinstance(work, Segment):
        return seal_segment(observer, work, shard_format, store, max_wait_seconds)
    hashes = []
    for number, begin, end in work.ranges:
        path = work.path / pile_name(number)
        with pile_errors(path):
            if begin < end:
                with open_own(path, "r+b") as file:
                    os.fsync(file.fileno())  # never a second time: see system/durable.py
            hashes.append(digest_of(path, begin, end).hexdigest())
    return "".join(hashes)


def sizes_of(folder: Path, state: PileState, shard_format: ShardFormat) -> dict[Path, int]:
    """Return the size of each file of the first pass that the manifest records."""
    sizes = {folder / pile_name(number): shard_format.size_bytes(n) for number, n in enumerate(state.tokens)}
    return {**sizes, list_path(folder): state.list_bytes}


def prepare_piles(sizes: dict[Path, int]) -> None:
    """Make the files that are missing, and cut off what comes after these sizes."""
    folders = {path.parent for path in sizes}
    for folder in folders:
        with output_errors(folder):
            make_folder(folder)
    for path, size in sizes.items():
        with output_errors(path), open_own(path, "r+b", create=True) as file:
            file.truncate(size)
    for folder in folders:
        sync_folder(folder)
