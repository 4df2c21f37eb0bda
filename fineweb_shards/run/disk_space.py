"""How much space the rest of a build or an export takes on this machine, and whether it is free.

Without a shuffle that is the size of the shards, or for a bucket of those that are being made. The piles of a shuffle
take as much as the result, and its list of documents a little more. In the second pass each pile is deleted once all
it has given is recorded, so that the peak is the result once, with what is under way: shards that are not recorded yet,
and the largest pile. Piles that are on another disk (--scratch) are looked at by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.errors import DiskFullError
from fineweb_shards.formats.piles import ENTRY_BYTES
from fineweb_shards.store.store import OutputSpec
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.machine import disk_of, free_disk_bytes
from fineweb_shards.units import show_bytes
from fineweb_shards.writing.placement import shards_at_once

_ESTIMATE_TOLERANCE = 0.9


@dataclass(frozen=True, slots=True)
class Rest:
    """How much of a stream is still to be written."""

    tokens: int  # of the whole stream
    documents: int
    done_tokens: int  # in finished shards
    workers: int
    piles: PileState | None = None  # of a shuffle
    val_tokens: int = 0  # of these, in the pile of files for validation; about


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """What a disk has to hold, beside what is on it, at the most."""

    folder: Path
    size_bytes: int
    pile_bytes: int  # of these, for the piles of a shuffle
    free_bytes: int

    @property
    def what(self) -> str:
        shards = ["the shards"] if self.size_bytes > self.pile_bytes or not self.pile_bytes else []
        return " and ".join([*["the piles of the shuffle"] * (self.pile_bytes > 0), *shards])


def find_needs(spec: OutputSpec, pile_folder: Path, rest: Rest) -> list[DiskNeed]:
    """Return what is needed on the disk of the output and, if the piles are on another one, on that."""
    size_bytes, piles = spec.shard_format.size_bytes, rest.piles
    shard, at_once = size_bytes(spec.shard_tokens), shards_at_once(rest.workers)
    shards = spec.store.scratch_bytes(size_bytes(max(0, rest.tokens - rest.done_tokens)), shard, at_once)
    if piles is None:
        return [DiskNeed(spec.folder, shards, 0, free_disk_bytes(spec.folder))]
    left = 0
    if not piles.ended:
        left = size_bytes(max(0, rest.tokens - sum(piles.tokens)))
        left += max(0, ENTRY_BYTES * rest.documents - piles.list_bytes)
    free = free_disk_bytes(pile_folder)
    if not any(piles.tokens):  # a first pass that begins removes what an earlier one has left
        free += sum(path.stat().st_size for path in pile_folder.glob("*"))
    if disk_of(pile_folder) != disk_of(spec.folder):
        return [DiskNeed(spec.folder, shards, 0, free_disk_bytes(spec.folder)), DiskNeed(pile_folder, left, left, free)]
    val, *train = piles.tokens
    val = val if piles.ended else max(val, rest.val_tokens)
    pile = size_bytes(max(rest.tokens // piles.count, val if rest.done_tokens < val else 0, *train))
    return [DiskNeed(spec.folder, left + min(shards, at_once * shard + pile), left, free)]


def check_needs(needs: Iterable[DiskNeed], spec: OutputSpec, *, exact: bool, has_limit: bool = True) -> None:
    """Raise DiskFullError for a disk that can't hold what it has to. An estimated size is first reduced by 10 %.
    `has_limit`: --max-tokens may be given."""
    about, remark = ("", "") if exact else ("about ", " (an estimate)")
    for need in needs:
        needed, free = need.size_bytes, need.free_bytes
        if free >= (needed if exact else needed * _ESTIMATE_TOLERANCE):
            continue
        place = "--out or --scratch" if need.pile_bytes else "--out"
        if spec.store.is_remote or need.folder != spec.folder:
            place = "--scratch"
        raise DiskFullError(
            f"{need.folder}: {need.what} need {about}{show_bytes(needed)}{remark}, {show_bytes(free)} "
            f"are free: {about}{show_bytes(needed - free)} are missing.",
            f"Free some space, choose another {place}, or end earlier with --max-tokens."
            if has_limit
            else f"Free some space, or choose another {place}.",
        )
