"""Verify a folder: compare every shard with the manifest's hash and counts, its header and the vocabulary.

Each file is read once, several in parallel, in constant memory. Nothing in a shard is trusted: the header is
compared as bytes, never parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.cleanup import find_untracked, list_all_names
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.opening import require_manifest
from fineweb_shards.store.resume_rules import may_be_longer
from fineweb_shards.store.shard_files import OutputFile, find_damage, list_files, read_contents
from fineweb_shards.store.sidecars import check_sidecars, list_finished, with_sidecars
from fineweb_shards.store.store import FoundFile, Store
from fineweb_shards.system.background import map_in_background
from fineweb_shards.system.machine import usable_cores
from fineweb_shards.types import ShardRecord
from fineweb_shards.units import show_number_of

_REMOTE_AT_ONCE = 8  # however few the cores: most of the time is waiting. Each takes 20 MB of memory

_BUILD_AT_WORK = "A build is at work here: stop it, or wait for its end, and verify again."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found in a folder."""

    manifest: Manifest
    damages: list[str]  # a sentence each, beginning with the file's name
    untracked: list[str]  # files that a loader would read, and that the manifest does not name
    unfinished: list[str]  # files that a run has named and not recorded; after a kill they are made again


def verify_folder(
    store: Store,
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
    *,
    alone: bool = False,
) -> Verdict:
    """Check all shards, sidecars and names; `report` is called for each record that was checked.

    `sealed` are records that this run has made: those segments were read back when they were sealed
    (store/shard_files.py), so that only lengths and headers are left to check. `alone`: this process has the
    store locked. Else a build may have gone on since the manifest was read, and nothing is complained about
    before it was read again.
    """
    manifest = require_manifest(store)
    damages = _damaged_records(store, manifest, manifest.shards, report, sealed)
    beside = _damaged_sidecars(store, manifest)
    untracked, unfinished = _check_names(manifest, list_all_names(store))
    if not alone and (damages or beside or untracked or unfinished):
        # The names first: then the manifest lacks none of them but those that a build is about to record.
        names = list_all_names(store)
        store.refresh()
        newest = require_manifest(store)
        untracked, unfinished = _check_names(newest, names)
        still = [record for record in newest.shards if record in damages]
        damages = _damaged_records(store, newest, still)
        beside = _damaged_sidecars(store, newest)
    return Verdict(manifest, [*dict.fromkeys([*damages.values(), *beside])], untracked, unfinished)


def _damaged_records(
    store: Store,
    manifest: Manifest,
    records: Sequence[ShardRecord],
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
) -> dict[ShardRecord, str]:
    """Check some records of a manifest; return those that are damaged, with a sentence each."""
    shard_format = manifest.shard_format
    files = {file.name: file for file in list_files(manifest.shards)}
    found_files = store.find_all({record.name for record in records})

    def check(record: ShardRecord) -> str | None:
        file, found = files[record.name], found_files.get(record.name)
        may_grow = not manifest.complete and may_be_longer(manifest, file)
        damage = check_segment(
            store, shard_format, file, found, record, may_grow=may_grow, sealed=record in sealed
        )
        report(record)
        return damage

    # In threads: hashing and numpy release the GIL.
    damages = map_in_background(check, records, _at_once(store))
    return {record: damage for record, damage in zip(records, damages, strict=True) if damage}


def _damaged_sidecars(store: Store, manifest: Manifest) -> list[str]:
    """Check the sidecars, which are written when the manifest is complete."""
    if not manifest.complete:
        return []
    everything = store.find_all(with_sidecars(manifest, {record.name for record in manifest.shards}))
    check_beside = partial(check_sidecars, everything=everything)
    checked = map_in_background(check_beside, list_finished(store, manifest), _at_once(store))
    return [damage for some in checked for damage in some]


def _at_once(store: Store) -> int:
    return _REMOTE_AT_ONCE if store.is_remote else usable_cores()


def check_folder(
    store: Store,
    warn: Callable[[str], None],
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
    *,
    alone: bool = False,
) -> Verdict:
    """Verify a folder. If files are damaged or do not belong there, `warn` of each and raise DamageError."""
    verdict = verify_folder(store, report, sealed, alone=alone)
    for damage in verdict.damages:
        warn(damage)
    for name in verdict.untracked:
        warn(f"{name}: not in the manifest, but a loader would read it")
    if verdict.damages or verdict.untracked:
        error = _damage_error(store, len(verdict.damages), len(verdict.untracked))
        if not alone and store.is_locked():
            raise DamageError(error.message, _BUILD_AT_WORK)
        raise error
    return verdict


def _damage_error(store: Store, damaged: int, untracked: int) -> DamageError:
    """Return an error with the next step; a build remakes damaged files, and does nothing about others."""
    if not untracked:
        return DamageError(f"{store.location}: {show_number_of(damaged, 'damaged file')}.")
    do = "does" if untracked == 1 else "do"
    strays = f"{show_number_of(untracked, 'file')} that {do} not belong there"
    if not damaged:
        return DamageError(f"{store.location}: {strays}.", "Move what is named above away, or delete it.")
    return DamageError(
        f"{store.location}: {show_number_of(damaged, 'damaged file')} and {strays}.",
        "What is not in the manifest: move it away, or delete it. Damaged files: delete them and "
        "run the same build again; it makes the damaged files again.",
    )


def _check_names(manifest: Manifest, names: Collection[str]) -> tuple[list[str], list[str]]:
    """Find files that a loader would read and the manifest does not name.

    Returns the names of those that do not belong there, and of unfinished files.
    """
    known = with_sidecars(manifest, {record.name for record in manifest.shards})
    untracked = find_untracked(names, manifest.layout, known)
    unfinished: set[str] = set()
    if not manifest.complete:  # shards are renamed shortly before they are recorded
        named = manifest.numbering.unrecorded_names(manifest.shards, set(names))
        unfinished = with_sidecars(manifest, named)
    strays = [name for name in untracked if name not in unfinished]
    return strays, [name for name in untracked if name in unfinished]


def check_segment(
    store: Store,
    shard_format: ShardFormat,
    file: OutputFile,
    found: FoundFile | None,
    record: ShardRecord,
    *,
    may_grow: bool = False,
    sealed: bool = False,
) -> str | None:
    """Return what is wrong with one segment of a file, of which the store has `found`; or None.

    `may_grow` says that the file, even under its final name, may contain more than the manifest records;
    `sealed`, that its contents have been checked.
    """
    if found is None:
        return f"{file.name}: missing"
    try:
        header = store.read_range(found, 0, shard_format.header_bytes) if found.named else b""
        damage = _check_size(shard_format, file, found, header, may_grow=may_grow or not found.named)
        if damage or sealed:
            return damage
        with store.open(found) as data:
            return check_tokens(shard_format, record, data)
    except OSError as error:
        return f"{file.name}: {error.strerror}"


def _check_size(
    shard_format: ShardFormat, file: OutputFile, found: FoundFile, header: bytes, *, may_grow: bool
) -> str | None:
    """Return what is wrong with a file's length or, if it has its final name, its header; or None."""
    size = found.size_bytes
    if size < file.end_bytes or (size > file.end_bytes and not may_grow):
        return f"{file.name}: {size:,} bytes long, should be {file.end_bytes:,}"
    tokens, _ = shard_format.tokens_in(size)
    if found.named and header != shard_format.header(tokens):
        return f"{file.name}: the header is damaged"
    return None


def check_tokens(
    shard_format: ShardFormat, record: ShardRecord, data: BinaryIO, begin: int = 0
) -> str | None:
    """Return what is wrong with a segment's hash, token ids or number of documents, or None. `begin` is the
    byte of the whole file with which `data` begins."""
    contents = read_contents(data, shard_format, record.offset, record.bytes, begin)
    if contents.sha256 != record.sha256:
        place = f" of {record.bytes:,} bytes from {record.offset:,} on" if record.offset else ""
        return f"{record.name}: SHA-256{place} is {contents.sha256}, should be {record.sha256}"
    damage = find_damage(contents, shard_format, record.documents)
    return f"{record.name}: {damage}" if damage else None
