"""Token files, of shards and of a shuffle's piles: list those of a manifest, find, write, read back and seal them.

A finished file has its final name in the output folder. A growing one is in the work folder, under a name without
`train` or `val`, so that a reader never opens an incomplete file.

The control plane creates the files and renames them when they are whole. Several processes write to one file, each with
its own descriptor to its own ranges, so no lock is needed. A segment is what one record of the manifest describes: a
whole shard, or the bytes that a checkpoint adds to a growing file. Sealing it means to write the header if the file
ends with it, to read it back, to check it and to make it durable. The piles of a shuffle's first pass are made durable
and hashed in the same way; formats/piles.py says what is in them.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.events import Observer
from fineweb_shards.formats.piles import OBJECTS, digest_of, list_path, pile_errors, pile_name
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.store import Segment, Store
from fineweb_shards.stream.shuffle import MOST_PILES, PileState
from fineweb_shards.system.durable import output_error, output_errors, sync_folder
from fineweb_shards.system.machine import allow_files
from fineweb_shards.system.own_files import WORK_FOLDER, is_plain_file, make_folder, open_descriptor, open_own
from fineweb_shards.system.retry import Disk
from fineweb_shards.texts import copy_ranges
from fineweb_shards.types import Placement, ShardRecord, Split, Tokens
from fineweb_shards.units import show_number_of

# Frequent syncs keep the final one short, and the page cache free of a whole shard of unwritten data.
SYNC_EVERY_BYTES = 32 * 2**20
_OPEN_FILES = 4  # for each split its file and the one before; piles are all kept open
_READ_BYTES = 2**19  # larger buffers go back to the kernel each time and cost page faults


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A token file and its segments, in order."""

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
    """Return the path of a file while it grows: a unique name without `train` or `val`."""
    return path.parent / WORK_FOLDER / f"{path.name.replace('train', 't').replace('val', 'v')}.tmp"


def find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file of the manifest, growing or finished; None if it is missing."""
    final = folder / name
    growing = growing_path(final)
    return growing if is_plain_file(growing) else final if final.is_file() else None


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a segment, summarized."""

    sha256: str
    documents: int  # number of EOTs
    highest: int  # the largest token id


def read_contents(file: BinaryIO, shard_format: ShardFormat, offset: int, size_bytes: int, begin: int = 0) -> Contents:
    """Read a segment in constant memory; if the file is too short, up to its end. `begin` is the position in the
    finished file where `file` begins."""
    vocabulary = shard_format.vocabulary
    file.seek(offset - begin)
    header = file.read(max(0, shard_format.header_bytes - offset))
    digest, documents, highest = hashlib.sha256(header), 0, 0
    left = size_bytes - len(header)
    while left and (block := file.read(min(left, _READ_BYTES))):
        left -= len(block)
        digest.update(block)
        tokens = shard_format.from_bytes(block)
        documents += vocabulary.count_eots(tokens)
        highest = max(highest, int(tokens.max(initial=0)))
    return Contents(digest.hexdigest(), documents, highest)


def find_damage(contents: Contents, shard_format: ShardFormat, documents: int) -> str | None:
    """Return what is wrong with a segment that should have `documents` documents; None if nothing is."""
    if contents.highest >= shard_format.vocabulary.size:
        return f"token {contents.highest} is outside the vocabulary"
    if contents.documents != documents:
        return f"{show_number_of(contents.documents, 'document')}, should be {documents:,}"
    return None


class TokenWriter:
    """Writes tokens in the format of the run's files. Waits and retries while the disk is full."""

    def __init__(self, shard_format: ShardFormat, disk: Disk) -> None:
        self._format = shard_format
        self._disk = disk
        self._files: OrderedDict[str, int] = OrderedDict()  # path to descriptor, most recently used last
        self._unsynced_bytes = 0
        self._most_open = _OPEN_FILES

    def write(self, tokens: Tokens, placement: Placement) -> None:
        """Write ranges of tokens where they belong."""
        writes = self._divide(tokens, placement)
        self._most_open = _OPEN_FILES if placement.piles is None else _OPEN_FILES + allow_files(MOST_PILES)
        self._disk.attempt(partial(self._write_all, writes))
        if placement.piles is None:  # piles are synced all together
            lengths = placement.ranges[:, 1] - placement.ranges[:, 0]
            self._unsynced_bytes += self._format.size_bytes(int(lengths.sum()))
        if self._unsynced_bytes >= SYNC_EVERY_BYTES:
            self._unsynced_bytes = 0
            self._sync(placement.path)

    def sync(self) -> None:
        """Make all written tokens durable, and visible to other machines."""
        for path in list(self._files):
            self._sync(path)

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _divide(self, tokens: Tokens, placement: Placement) -> deque[tuple[str, int, memoryview]]:
        """Return the writes to make: path, offset and data. Adjacent ranges of a file are joined."""
        path, offsets, ranges, piles = placement.path, placement.offsets, placement.ranges, placement.piles
        begins, lengths = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
        if piles is not None:
            order = np.argsort(piles, kind="stable")
            offsets, begins, lengths, piles = offsets[order], begins[order], lengths[order], piles[order]
        ends = np.cumsum(lengths)
        if len(ranges) == 1:
            joined = tokens[begins[0] : begins[0] + lengths[0]]
        else:
            joined = np.empty(int(ends[-1]), tokens.dtype)
            copy_ranges(tokens, begins, lengths, joined, ends - lengths)
        data, sizes = self._format.to_bytes(joined), self._format.size_bytes(lengths)
        follows = offsets[1:] == (offsets + sizes)[:-1]
        if piles is not None:
            follows &= piles[1:] == piles[:-1]
        starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])  # of the writes
        bounds = [*self._format.size_bytes((ends - lengths)[starts]).tolist(), len(data)]
        parts = [data[begin:end] for begin, end in pairwise(bounds)]
        numbers = [] if piles is None else piles[starts].tolist()
        paths = [os.path.join(path, pile_name(number)) for number in numbers] or [path] * len(starts)
        return deque(zip(paths, offsets[starts].tolist(), parts, strict=True))

    def _write_all(self, writes: deque[tuple[str, int, memoryview]]) -> None:
        """Do these writes. Each is removed once it is done, so that a retry continues with the rest."""
        seek, write, begin = os.lseek, os.write, os.SEEK_SET
        try:
            while writes:
                path, offset, data = writes[0]
                file = self._open(path)
                seek(file, offset, begin)
                written = write(file, data)
                if written < len(data):
                    writes[0] = path, offset + written, data[written:]
                else:
                    writes.popleft()
        except OSError as error:
            raise output_error(Path(writes[0][0]), error) from error

    def _sync(self, path: str) -> None:
        with output_errors(Path(path)):
            os.fsync(self._open(path))

    def _open(self, path: str) -> int:
        if path not in self._files:
            while len(self._files) >= self._most_open:
                os.close(self._files.popitem(last=False)[1])
            self._files[path] = open_descriptor(path, os.O_WRONLY)
        self._files.move_to_end(path)
        return self._files[path]


def seal_segment(
    observer: Observer, segment: Segment, shard_format: ShardFormat, store: Store, max_wait_seconds: float
) -> str:
    """Seal a segment after all its tokens are written; return its SHA-256. Waits while the disk is full. If the process
    dies, any other can repeat this."""
    with output_errors(store.folder / segment.name):
        if segment.header and not segment.begin:

            def write_header() -> None:  # a reopened file may have one for fewer tokens
                with output_errors(segment.path), open_own(segment.path, "r+b", buffering=0) as file:
                    file.write(segment.header)

            Disk(segment.path.parent, max_wait_seconds, observer).attempt(write_header)
        with open_own(segment.path, "rb") as file:
            contents = read_contents(file, shard_format, segment.offset, segment.size_bytes, segment.begin)
        damage = find_damage(contents, shard_format, segment.documents)
        if damage:
            raise DamageError(
                f"{segment.name}: {damage}, when it was read back after writing.",
                "Memory or disk may be faulty. Everything finished is kept; rerun the same command to make it again.",
            )
        store.add_segment(segment, observer)
    return contents.sha256


@dataclass(frozen=True)
class PileWork:
    """What was added to some piles, to be made durable and hashed; `path` is their folder. With `name`, it is what a
    checkpoint adds to all of them: one object in a bucket, made in the file `path`."""

    path: Path
    ranges: tuple[tuple[int, int, int], ...]  # number, and first and last byte of each
    name: str = ""

    def in_object(self, placement: Placement) -> Placement:
        """Return where the tokens belong in the object; those beyond the checkpoint are left out."""
        assert placement.piles is not None
        _, begins, ends = np.array(self.ranges, np.int64).T
        sizes = ends - begins
        shifts, piles = np.cumsum(sizes) - sizes - begins, placement.piles
        own = np.flatnonzero(placement.offsets < ends[piles])
        offsets = (placement.offsets + shifts[piles])[own]
        order = np.argsort(offsets)
        return replace(placement, offsets=offsets[order], ranges=placement.ranges[own[order]], piles=None)


def seal(
    observer: Observer, work: Segment | PileWork, shard_format: ShardFormat, store: Store, max_wait_seconds: float
) -> str:
    """Seal a segment, or make durable what was added to piles; return the SHA-256 of the segment, or those of the
    piles one after the other."""
    if isinstance(work, Segment):
        return seal_segment(observer, work, shard_format, store, max_wait_seconds)
    hashes = []
    if work.name:
        position = 0
        for _, begin, end in work.ranges:
            with output_errors(work.path):
                hashes.append(digest_of(work.path, position, position + end - begin).hexdigest())
            position += end - begin
        store.add_file(work.path, f"{OBJECTS}/{work.name}", observer)
        return "".join(hashes)
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
    tokens = () if state.in_bucket else state.tokens
    sizes = {folder / pile_name(number): shard_format.size_bytes(n) for number, n in enumerate(tokens)}
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
