"""Read the token stream of finished shards in its original order, a block at a time.

If validation is the beginning of the stream, shards are read one after the other. If it is a share of the
documents, both splits are read in parallel and merged: a document's number says which split it is in. EOTs
are searched for once, in each block as it is read; from then on their positions travel with the tokens.

Nothing is trusted: a segment is checked against its hash before its tokens are used. A file in a bucket would
have to be fetched twice for it, which costs time and money. So a segment of one is copied into a temporary
folder, checked there, and removed when it has been read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.reading.verify import check_segment, check_tokens
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.shard_files import OutputFile, list_files
from fineweb_shards.store.store import Store
from fineweb_shards.stream.boundaries import NO_POSITIONS, Span, join_spans
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.own_files import open_own
from fineweb_shards.types import SPLITS, ShardRecord, Split, Tokens

BLOCK_TOKENS = 2**19  # as in verify.py: for larger blocks page faults take longer than the copying
_READ_BYTES = 2**20  # of a range that is fetched
_RUN_DOCUMENTS = 2**16  # how many document numbers are assigned to splits at once


def read_stream(store: Store, manifest: Manifest, start: int) -> Iterator[Span]:
    """Yield the stream from token `start` on, as it was before it was split."""
    records, shard_format, split_rule = manifest.shards, manifest.shard_format, manifest.split_rule
    if not split_rule.val_ratio:
        yield from _read(store, shard_format, records, start)
        return
    splits: dict[Split, _Documents] = {}
    for split in SPLITS:
        blocks = _read(store, shard_format, [record for record in records if record.split == split], 0)
        splits[split] = _Documents(blocks, shard_format.layout.eot_first)
    for block in gather(_merge(splits, split_rule)):
        if start < len(block):
            yield block.cut(start, len(block))
        start = max(0, start - len(block))


def gather(parts: Iterable[Span]) -> Iterator[Span]:
    """Join many small spans to fewer large ones."""
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


def _read(
    store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], start: int
) -> Iterator[Span]:
    """Yield the tokens of segments, one after the other; the next segment is checked while one is read."""
    files = {file.name: file for file in list_files(records)}
    wanted = []  # records, each with the number of tokens to skip
    for record in records:
        if start < record.tokens:
            wanted.append((record, start))
        start = max(0, start - record.tokens)

    with open_segments(store, shard_format) as segments:

        def check(number: int) -> Future[str | None]:
            record = wanted[number][0]
            return in_background(lambda: segments.check(files[record.name], record))

        ahead = [check(0)] if wanted else []
        for number, (record, skip) in enumerate(wanted):
            if damage := ahead.pop().result():
                raise DamageError(f"{store.location}: {damage}.", "Restore it, or build it again.")
            if number + 1 < len(wanted):
                ahead.append(check(number + 1))
            with segments.open(record) as file:
                for tokens in _read_segment(file, shard_format, record, skip):
                    yield Span(tokens, shard_format.vocabulary.find_eots(tokens))


def _read_segment(
    file: BinaryIO, shard_format: ShardFormat, record: ShardRecord, skip: int
) -> Iterator[Tokens]:
    """Yield the tokens of a segment after the first `skip`, a block at a time."""
    file.seek(shard_format.size_bytes(skip), io.SEEK_CUR)
    left = record.tokens - skip
    while left:
        block = shard_format.from_bytes(file.read(shard_format.size_bytes(min(left, BLOCK_TOKENS))))
        if not len(block):
            raise DamageError(f"{record.name}: has become shorter while it was read.")
        left -= len(block)
        yield block


def _merge(splits: dict[Split, _Documents], split_rule: SplitRule) -> Iterator[Span]:
    """Yield the documents of both splits in the order of the stream."""
    first = 0
    while any(split.more() for split in splits.values()):
        chosen = split_rule.chooses(np.arange(first, first + _RUN_DOCUMENTS, dtype=np.int64))
        first += _RUN_DOCUMENTS
        boundaries = [0, *(np.flatnonzero(chosen[1:] != chosen[:-1]) + 1).tolist(), _RUN_DOCUMENTS]
        for begin, end in itertools.pairwise(boundaries):
            yield from splits["val" if chosen[begin] else "train"].take(end - begin)


class _Documents:
    """The stream of one split, from which documents are taken."""

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
        """Yield the tokens of the next `documents` documents, or of those that are left."""
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


class Segments(ABC):
    """The segments of a store. Each is checked, and then opened."""

    @abstractmethod
    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        """Return what is wrong with a segment, or None. In any thread."""

    @abstractmethod
    def open(self, record: ShardRecord) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open the file of a segment that was checked, at its first token."""


@contextlib.contextmanager
def open_segments(store: Store, shard_format: ShardFormat) -> Iterator[Segments]:
    """Open the segments of a store."""
    if not store.is_remote:
        yield _SegmentsHere(store, shard_format)
        return
    # A thread that nobody waits for may still write into it.
    with tempfile.TemporaryDirectory(prefix="fineweb-shards-", ignore_cleanup_errors=True) as folder:
        yield _FetchedSegments(store, shard_format, Path(folder))


@dataclass(frozen=True, slots=True)
class _SegmentsHere(Segments):
    store: Store
    shard_format: ShardFormat

    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        return check_segment(self.store, self.shard_format, file, self.store.find(file.name), record)

    @contextlib.contextmanager
    def open(self, record: ShardRecord) -> Iterator[BinaryIO]:
        with self.store.open(self.store.require(record.name)) as file:
            file.seek(max(record.offset, self.shard_format.header_bytes))
            yield file


@dataclass(frozen=True, slots=True)
class _FetchedSegments(Segments):
    store: Store
    shard_format: ShardFormat
    folder: Path

    def check(self, file: OutputFile, record: ShardRecord) -> str | None:
        # Its length and header, of the file in the bucket; its tokens, of the copy.
        found = self.store.find(file.name)
        if damage := check_segment(self.store, self.shard_format, file, found, record, sealed=True):
            return damage
        path = self._path(record)
        try:
            fetch_range(self.store, record.name, record.offset, record.offset + record.bytes, path)
        except OSError as error:
            raise output_error(path, error) from error
        with path.open("rb") as data:
            return check_tokens(self.shard_format, record, data, begin=record.offset)

    @contextlib.contextmanager
    def open(self, record: ShardRecord) -> Iterator[BinaryIO]:
        path = self._path(record)
        with path.open("rb") as file:
            file.seek(max(0, self.shard_format.header_bytes - record.offset))
            yield file
        path.unlink()

    def _path(self, record: ShardRecord) -> Path:
        return self.folder / f"{record.name}.{record.offset}"


def fetch_range(store: Store, name: str, begin: int, end: int, path: Path) -> str:
    """Write the bytes from `begin` to `end` of a file into a new one, durably, in constant memory; return
    their SHA-256. Raises OSError if that can't be written, or a ShardError; then it is not complete."""
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
