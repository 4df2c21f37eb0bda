"""Read finished shards without trusting them: verify a folder, or read its token stream.

Verifying compares every shard with the manifest's hash and counts, its header and the vocabulary. Each file is read
once, several in parallel, in constant memory; the header is compared as bytes, never parsed.

The stream is read in its original order, block by block, and each segment is checked before its tokens are used. If
validation is the beginning of the stream, shards are read one after the other. If it is a share of the documents, both
splits are read in parallel and merged, because a document's number determines its split. Each block is searched for
EOTs once; from then on their positions travel with the tokens. Checking a file in a bucket first would mean fetching it
twice, which costs time and money. So each segment is copied to a temporary folder, checked there, and removed after
reading.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.cleanup import find_untracked, list_all_names
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.opening import require_manifest
from fineweb_shards.output.resume_rules import may_be_longer
from fineweb_shards.output.shard_files import OutputFile, find_damage, list_files, read_contents
from fineweb_shards.output.sidecars import check_sidecars, list_finished, with_sidecars
from fineweb_shards.output.store import FoundFile, Store
from fineweb_shards.stream.section import NO_POSITIONS, Span, join_spans
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.background import in_background, map_in_background
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.machine import usable_cores
from fineweb_shards.system.own_files import open_own
from fineweb_shards.types import SPLITS, ShardRecord, Split
from fineweb_shards.units import show_number_of

BLOCK_TOKENS = 2**19  # of the stream: with larger blocks page faults take longer than copying
_READ_BYTES = 2**20  # of a fetched range
_RUN_DOCUMENTS = 2**16  # document numbers assigned to splits at once
_REMOTE_AT_ONCE = 8  # regardless of the cores, because most of the time is waiting; each takes 20 MB of memory


@dataclass(frozen=True, slots=True)
class Verdict:
    manifest: Manifest
    damages: list[str]  # a sentence each, beginning with the file's name
    untracked: list[str]  # files that a loader would read but the manifest does not name
    unfinished: list[str]  # files that a run renamed but did not record; after a kill they are made again


def check_folder(
    store: Store,
    warn: Callable[[str], None],
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
    *,
    alone: bool = False,
) -> Verdict:
    """Verify a folder. If files are damaged or don't belong there, `warn` of each and raise DamageError."""
    verdict = verify_folder(store, report, sealed, alone=alone)
    damaged, strays = len(verdict.damages), len(verdict.untracked)
    if not damaged and not strays:
        return verdict
    for damage in verdict.damages:
        warn(damage)
    for name in verdict.untracked:
        warn(f"{name}: not in the manifest, but a loader would read it")
    found = [show_number_of(damaged, "damaged file")] if damaged else []
    hint = None
    if strays:  # a build remakes damaged files, but ignores these
        found.append(f"{show_number_of(strays, 'file')} that {'does' if strays == 1 else 'do'} not belong there")
        hint = "Move the files named above away, or delete them."
        if damaged:
            hint = "Move files that are not in the manifest away, or delete them. Delete the damaged files and rerun "
            hint += "the same build, which remakes them."
    if not alone and store.is_locked():
        hint = "A build is running here: stop it, or wait for its end, and verify again."
    raise DamageError(f"{store.location}: {' and '.join(found)}.", hint)


def verify_folder(
    store: Store,
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
    *,
    alone: bool = False,
) -> Verdict:
    """Check all shards, sidecars and names; call `report` for each checked record.

    `sealed` are records of this run: sealing read those segments back (output/shard_files.py), so only lengths and
    headers are left to check. `alone`: this process has locked the store. Otherwise a build may be running, and the
    manifest is read again before anything is reported as damaged.
    """
    manifest = require_manifest(store)
    verdict, damaged = _look(store, manifest, manifest.shards, list_all_names(store), report, sealed)
    if not alone and (verdict.damages or verdict.untracked or verdict.unfinished):
        # List the names first: then the manifest lacks only those that a build is about to record.
        names = list_all_names(store)
        store.refresh()
        newest = require_manifest(store)
        still = [record for record in newest.shards if record in damaged]
        verdict, _ = _look(store, newest, still, names)
    return replace(verdict, manifest=manifest)


def _look(
    store: Store,
    manifest: Manifest,
    records: Sequence[ShardRecord],
    names: Collection[str],
    report: Callable[[ShardRecord], None] = lambda _: None,
    sealed: Collection[ShardRecord] = (),
) -> tuple[Verdict, set[ShardRecord]]:
    """Check some records of a manifest, all sidecars, and names; return also the damaged records."""
    files = {file.name: file for file in list_files(manifest.shards)}
    found_files = store.find_all({record.name for record in records})
    at_once = _REMOTE_AT_ONCE if store.is_remote else usable_cores()

    def check(record: ShardRecord) -> str | None:
        file, found = files[record.name], found_files.get(record.name)
        grows, is_sealed = not manifest.complete and may_be_longer(manifest, file), record in sealed
        damage = check_segment(store, manifest.shard_format, file, found, record, may_grow=grows, sealed=is_sealed)
        report(record)
        return damage

    # Threads suffice, because hashing and NumPy release the GIL.
    checked = zip(records, map_in_background(check, records, at_once), strict=True)
    damages = {record: damage for record, damage in checked if damage}
    known = with_sidecars(manifest, {record.name for record in manifest.shards})
    beside, unfinished = [], set()
    if manifest.complete:
        check_beside = partial(check_sidecars, everything=store.find_all(known))
        for some in map_in_background(check_beside, list_finished(store, manifest), at_once):
            beside += some
    else:  # shards are renamed shortly before they are recorded
        unfinished = with_sidecars(manifest, manifest.numbering.unrecorded_names(manifest.shards, set(names)))
    untracked = find_untracked(names, manifest.layout, known)
    strays = [name for name in untracked if name not in unfinished]
    sentences = [*dict.fromkeys([*damages.values(), *beside])]
    return Verdict(manifest, sentences, strays, [name for name in untracked if name in unfinished]), set(damages)


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
    """Return what is wrong with one segment of a file, which the store has as `found`; None if nothing is.

    `may_grow`: the file, even under its final name, may contain more than the manifest records. `sealed`: its contents
    have been checked. Only a file under its final name has a header.
    """
    if found is None:
        return f"{file.name}: missing"
    size = found.size_bytes
    try:
        header = store.read_range(found, 0, shard_format.header_bytes) if found.named else b""
        if size < file.end_bytes or (size > file.end_bytes and found.named and not may_grow):
            return f"{file.name}: {size:,} bytes long, should be {file.end_bytes:,}"
        if found.named and header != shard_format.header(shard_format.tokens_in(size)[0]):
            return f"{file.name}: the header is damaged"
        if sealed:
            return None
        with store.open(found) as data:
            return _check_tokens(shard_format, record, data)
    except OSError as error:
        return f"{file.name}: {error.strerror}"


def _check_tokens(shard_format: ShardFormat, record: ShardRecord, data: BinaryIO, begin: int = 0) -> str | None:
    """Return what is wrong with a segment's hash, token ids or number of documents; None if nothing is. `begin` is the
    position in the whole file where `data` begins."""
    contents = read_contents(data, shard_format, record.offset, record.bytes, begin)
    if contents.sha256 != record.sha256:
        place = f" of {record.bytes:,} bytes from {record.offset:,} on" if record.offset else ""
        return f"{record.name}: SHA-256{place} is {contents.sha256}, should be {record.sha256}"
    damage = find_damage(contents, shard_format, record.documents)
    return f"{record.name}: {damage}" if damage else None


def read_stream(store: Store, manifest: Manifest, start: int, split: Split | None = None) -> Iterator[Span]:
    """Yield the stream from token `start` on, with its splits merged, or only one split."""
    records, shard_format, split_rule = manifest.shards, manifest.shard_format, manifest.split_rule
    if split is not None:
        records = tuple(record for record in records if record.split == split)
    if split is not None or not split_rule.val_ratio:
        yield from _read(store, shard_format, records, start)
        return
    splits: dict[Split, _Documents] = {}
    for split in SPLITS:
        blocks = _read(store, shard_format, [record for record in records if record.split == split], 0)
        splits[split] = _Documents(blocks, shard_format.layout.eot_first)
    for block in _gather(_merge(splits, split_rule)):
        if start < len(block):
            yield block.cut(start, len(block))
        start = max(0, start - len(block))


def _gather(parts: Iterable[Span]) -> Iterator[Span]:
    waiting: list[Span] = []
    tokens = 0
    for part in parts:
        waiting.append(part)
        tokens += len(part)
        if tokens >= BLOCK_TOKENS:
            yield join_spans(waiting)
            waiting, tokens = [], 0
    if tokens:
        yield join_spans(waiting)


def _merge(splits: dict[Split, _Documents], split_rule: SplitRule) -> Iterator[Span]:
    """Yield the documents of both splits in stream order."""
    first = 0
    while any(split.more() for split in splits.values()):
        chosen = split_rule.chooses(np.arange(first, first + _RUN_DOCUMENTS, dtype=np.int64))
        first += _RUN_DOCUMENTS
        boundaries = [0, *(np.flatnonzero(chosen[1:] != chosen[:-1]) + 1).tolist(), _RUN_DOCUMENTS]
        for begin, end in itertools.pairwise(boundaries):
            yield from splits["val" if chosen[begin] else "train"].take(end - begin)


class _Documents:
    """The stream of one split, read document by document."""

    def __init__(self, blocks: Iterator[Span], eot_first: bool) -> None:
        self._blocks = blocks
        self._eot_first = eot_first
        self._block = Span(NO_POSITIONS, NO_POSITIONS)
        self._position = 0
        self._place = 0  # the number of EOTs before `_position` in the block

    def more(self) -> bool:
        """Return whether tokens are left; load the next block if needed."""
        while self._position == len(self._block):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block, self._position, self._place = block, 0, 0
        return True

    def take(self, documents: int) -> Iterator[Span]:
        """Yield the tokens of the next `documents` documents, or of the rest."""
        while documents > 0 or self._eot_first:
            if not self.more():
                return
            # If EOT comes first, a document ends where the next one begins.
            last = self._place + documents - (0 if self._eot_first else 1)
            places = self._block.eots
            found = last < len(places)
            end = int(places[last]) + (0 if self._eot_first else 1) if found else len(self._block)
            if end > self._position:
                yield self._block.cut(self._position, end)
            passed = (last if self._eot_first else last + 1) if found else len(places)
            documents -= passed - self._place
            self._position, self._place = end, passed
            if found:
                return


def _read(store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], start: int) -> Iterator[Span]:
    """Yield the tokens of consecutive segments, checking the next segment while one is read."""
    files = {file.name: file for file in list_files(records)}
    wanted = []  # records, each with the number of tokens to skip
    for record in records:
        if start < record.tokens:
            wanted.append((record, start))
        start = max(0, start - record.tokens)

    with contextlib.ExitStack() as stack:
        folder = None
        if store.is_remote:  # an abandoned thread may still write into the folder: ignore errors
            temporary = tempfile.TemporaryDirectory(prefix="fineweb-shards-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))

        def check(record: ShardRecord) -> Path | None:
            """Raise DamageError if a segment is damaged. In a bucket, check the header and length of the file there,
            and the tokens in a copy in `folder`, which is returned."""
            copy = None if folder is None else folder / f"{record.name}.{record.offset}"
            file, found = files[record.name], store.find(record.name)
            damage = check_segment(store, shard_format, file, found, record, sealed=copy is not None)
            if copy is not None and not damage:
                with output_errors(copy):
                    fetch_range(store, record.name, record.offset, record.offset + record.bytes, copy)
                with copy.open("rb") as data:
                    damage = _check_tokens(shard_format, record, data, begin=record.offset)
            if damage:
                raise DamageError(f"{store.location}: {damage}.", "Restore it, or build it again.")
            return copy

        ahead = [in_background(partial(check, record)) for record, _ in wanted[:1]]
        for number, (record, skip) in enumerate(wanted, 1):
            copy = ahead.pop().result()
            ahead += [in_background(partial(check, following)) for following, _ in wanted[number : number + 1]]
            yield from _read_segment(store, shard_format, record, skip, copy)


def _read_segment(
    store: Store, shard_format: ShardFormat, record: ShardRecord, skip: int, copy: Path | None
) -> Iterator[Span]:
    """Yield the tokens of a checked segment after the first `skip`, block by block; remove its copy."""
    first = max(record.offset, shard_format.header_bytes) - (record.offset if copy else 0)
    left = record.tokens - skip
    with copy.open("rb") if copy else store.open(store.require(record.name)) as file:
        file.seek(first + shard_format.size_bytes(skip))
        while left:
            tokens = shard_format.from_bytes(file.read(shard_format.size_bytes(min(left, BLOCK_TOKENS))))
            if not len(tokens):
                raise DamageError(f"{record.name}: the file became shorter while it was read.")
            left -= len(tokens)
            yield Span(tokens, shard_format.vocabulary.find_eots(tokens))
    if copy:
        copy.unlink()


def fetch_range(store: Store, name: str, begin: int, end: int, path: Path) -> str:
    """Copy the bytes from `begin` to `end` of a file to a new one, durably, in constant memory; return their SHA-256.
    Raises OSError if the copy can't be written, or a ShardError; the copy is then incomplete."""
    digest = hashlib.sha256()
    with open_own(path, "xb") as target:
        for data in _read_range(store, name, begin, end):
            digest.update(data)
            target.write(data)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _read_range(store: Store, name: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a range; DamageError if the file is missing or shorter."""
    what = f"it ends before byte {end:,}"
    try:
        with store.open(store.require(name)) as source:
            source.seek(begin)
            while begin < end and (data := source.read(min(end - begin, _READ_BYTES))):
                begin += len(data)
                yield data
    except OSError as error:
        what = error.strerror or str(error)
    if begin < end:
        raise DamageError(
            f"{store.location}/{name}: {what}.",
            f"`fineweb-shards verify {shlex.quote(store.location)}` names all damaged files.",
        )
