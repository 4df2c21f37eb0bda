"""Decide where in the output folder tokens go, name complete files, and save the manifest.

The data plane (executors/base.py) writes the tokens. A checkpoint waits until everything before it is written, has the
data plane seal its segments (read back, hash, sync), names the complete files, and records all this in the manifest
with one cursor for each part of the input. Several checkpoints may be sealed at once, but are named and recorded in
order. So after a crash both splits continue from the same place in the stream, and whatever was written after it is
truncated.

Ctrl-C may come between any two steps, and finished work is recorded afterwards. So nothing leaves a queue before it is
done, and no checkpoint is recorded twice, or without its predecessor.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fineweb_shards.errors import DiskFullError, Interrupted, OutputError, ShardError
from fineweb_shards.executors.base import DataPlane
from fineweb_shards.layouts.base import Numbering, ShardFormat, tokens_of
from fineweb_shards.output.cleanup import remove_leftovers, remove_outdated_files
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.manifest_file import ManifestFile, save_manifest
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.output.sidecars import FinishedFile, list_finished
from fineweb_shards.output.store import GrowingPart, OutputSpec, Segment, Store
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import ForeignFileError, open_own
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import SPLITS, Counts, Cursors, Placement, Positions, ShardRecord, ShardSlice, Split, Taken

# How many checkpoints may be sealed at once, beside the one being written. Hashing a file takes a core for a tenth of a
# second; more would only lose more in a crash.
_MOST_CHECKPOINTS = 8
LONGEST_LAST_SECONDS = 3.0  # for each step of recording what is finished when a run stops early


def begin_output(store: Store, manifest: Manifest) -> None:
    """Remove files that `manifest` does not continue, then save it; every run begins with this."""
    remove_leftovers(store, manifest)
    remove_outdated_files(store, manifest)
    save_manifest(manifest, store)


def make_packer(spec: OutputSpec, manifest: Manifest, max_tokens: int | None) -> Packer:
    """Return the packer of a stream that continues where `manifest` ends, up to `max_tokens` in total."""
    return Packer(
        spec.shard_tokens,
        split_rule=spec.split_rule,
        one_file=spec.layout.one_file,
        eot_first=spec.layout.eot_first,
        done=manifest.done,
        starts=manifest.end,
        taken=manifest.taken,
        max_tokens=None if max_tokens is None else max_tokens - manifest.tokens,
    )


def checkpoints_at_once(workers: int) -> int:
    return 1 + min(workers, _MOST_CHECKPOINTS)


def shards_at_once(workers: int) -> int:
    """Return how many unrecorded files may exist at once: one for each split, and those being sealed."""
    return len(SPLITS) + checkpoints_at_once(workers)


def rows_by_block(holders: Positions) -> list[tuple[int, Positions]]:
    """Return each number in `holders`, the blocks of some ranges, with its rows in ascending order."""
    order = np.argsort(holders, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(holders[order])) + 1)
    return [(int(holders[rows[0]]), rows) for rows in groups]


@dataclass(eq=False)
class GrowingFile:
    """A file of tokens while it grows, in the work folder; once complete, it gets its final name.

    Most files are a shard of one segment. A file that grows over several checkpoints has a segment for each; after a
    crash it continues after the last recorded one. Workers write the tokens; this class only knows the next byte. The
    header contains the number of tokens, so it is written when the file is sealed.
    """

    name: str
    store: Store
    shard_format: ShardFormat
    split: Split
    disk: Disk
    tokens: int = 0  # placed so far; at first those in the manifest
    _part: GrowingPart | None = None  # to which the next tokens belong
    _documents: int = 0  # in the current segment

    def __post_init__(self) -> None:
        self.is_recorded = self.tokens > 0  # the manifest names it
        self.begin = self.tokens  # of the current segment
        self._paths: list[Path] = []  # of all parts so far

    def open(self) -> GrowingPart:
        """Return the part for the next tokens; if there is none, create it or continue the file. This is not in the
        constructor so that the caller knows the file even if Ctrl-C interrupts it."""
        if self._part is None:
            self._part = self.disk.attempt(self._prepare)
            self._paths.append(self._part.path)
        return self._part

    def _prepare(self) -> GrowingPart:
        with output_errors(self.store.folder / self.name):
            return self.store.prepare(self.name, self.shard_format.offset_bytes(self.tokens) if self.tokens else 0)

    def place(self, part: ShardSlice) -> list[tuple[int, Placement]]:
        """Append the tokens of a slice: return a placement for each block, with the block's number."""
        file = self.open()
        path, begin = str(file.path), self.shard_format.offset_bytes(self.tokens) - file.begin
        self.tokens += part.tokens
        self._documents += part.documents
        if len(part.ranges) == 1:  # mostly, without a mix
            return [(int(part.holders[0]), Placement(path, np.array([begin]), part.ranges))]
        lengths = part.ranges[:, 1] - part.ranges[:, 0]
        offsets = begin + self.shard_format.size_bytes(np.cumsum(lengths) - lengths)
        found = rows_by_block(part.holders)
        return [(number, Placement(path, offsets[rows], part.ranges[rows])) for number, rows in found]

    def end_segment(self, *, whole: bool) -> Segment:
        """End and return the current segment; `whole`: the file is complete with it."""
        file = self.open()
        offset = self.shard_format.offset_bytes(self.begin) if self.begin or not whole else 0
        segment = Segment(
            path=file.path,
            begin=file.begin,
            name=self.name,
            split=self.split,
            offset=offset,
            size_bytes=self.shard_format.offset_bytes(self.tokens) - offset,
            tokens=self.tokens - self.begin,
            documents=self._documents,
            whole=whole,
            header=self.shard_format.header(self.tokens) if whole else b"",
        )
        if self.store.is_remote:
            self._part = None
        self.begin, self._documents = self.tokens, 0
        return segment

    def discard(self, kept: Collection[Path] = ()) -> None:
        """Remove the file except for the `kept` paths, and free its space even while a worker has it open."""
        for path in self._paths:
            if path not in kept:
                with contextlib.suppress(FileNotFoundError, ForeignFileError):  # gone, or no longer ours
                    with open_own(path, "r+b") as file:
                        file.truncate(0)
                    path.unlink()


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Segments to record together, once they are sealed; that is after the first `after` placements are written."""

    segments: tuple[Segment, ...]
    after: int
    end: Cursors
    taken: tuple[Taken, ...]
    counts: Counts
    seals: list[Future[str]]  # their SHA-256; empty until all is written

    def make_records(self) -> list[ShardRecord]:
        """Return the records of the segments, once they are sealed; the last one has the counts."""
        filled = [(segment, seal) for segment, seal in zip(self.segments, self.seals, strict=True) if segment.tokens]
        return [
            ShardRecord(
                name=segment.name,
                split=segment.split,
                offset=segment.offset,
                tokens=segment.tokens,
                documents=segment.documents,
                bytes=segment.size_bytes,
                sha256=seal.result(),
                end=self.end,
                counts=self.counts if segment is filled[-1][0] else Counts(),
                taken=self.taken,
            )
            for segment, seal in filled
        ]


@dataclass(eq=False)
class Output:
    """Places blocks in order. Everything that `manifest` records is durable. `on_record` gets the new records and their
    place in the stream; `add_totals` adds seconds, memory and the like to a manifest before it is saved."""

    spec: OutputSpec
    manifest: Manifest
    plane: DataPlane
    disk: Disk
    add_totals: Callable[[Manifest], Manifest] = lambda manifest: manifest
    on_record: Callable[[Sequence[ShardRecord], Cursors], None] = lambda records, end: None

    def __post_init__(self) -> None:
        self._manifest_file = ManifestFile(self.spec.store)
        self._tokens = {split: tokens_of(self.manifest.shards, split) for split in SPLITS}  # placed so far
        self._files: dict[Split, GrowingFile] = {}  # for the next tokens
        self._unnamed: list[GrowingFile] = []  # these, and full ones without their final name
        self._writes: deque[Future[None]] = deque()  # of placements that may be unwritten, in order
        self._placed = 0  # placements
        self._checkpoints: deque[_Checkpoint] = deque()  # not in the manifest yet
        self._counts = Counts()  # since the last checkpoint
        self._end, self._taken = self.manifest.end, self.manifest.taken

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record finished work, unless the disk is at fault; then remove files that the manifest does not name."""
        if isinstance(error, DiskFullError):  # free the space of incomplete files, to record complete ones
            written = deque(itertools.takewhile(lambda one: one.done() and not one.exception(), self._writes))
            self._placed, self._writes = self._placed - len(self._writes) + len(written), written
            self._checkpoints = deque(one for one in self._checkpoints if one.after <= self._placed)
            whole = {segment.path for checkpoint in self._checkpoints for segment in checkpoint.segments}
            for file in self._unnamed:
                if not file.is_recorded:
                    file.discard(kept=whole)
        if isinstance(error, (ShardError, Interrupted)) and type(error) is not OutputError:
            # Not for long; and the first error is the one to report.
            self.spec.store.hurry(LONGEST_LAST_SECONDS)
            with contextlib.suppress(ShardError, Interrupted, TimeoutError):
                self.settle(longest_seconds=LONGEST_LAST_SECONDS)
        for file in self._unnamed:
            if not file.is_recorded:
                file.discard()

    @property
    def segments(self) -> int:
        """The number of segments so far, including those not in the manifest yet."""
        return len(self.manifest.shards) + sum(len(one.segments) for one in self._checkpoints)

    def add(self, section: Section, slices: Iterable[ShardSlice]) -> None:
        """Place a section, which `slices` divide."""
        placements: list[tuple[int, Placement]] = []  # with the number of their block
        try:
            for part in slices:
                self._counts += part.counts
                self._end, self._taken = part.end, part.taken
                if part.tokens:
                    placements += self._file(part.split).place(part)
                    self._tokens[part.split] += part.tokens
                if part.checkpoint:
                    after = self._placed + len(placements)
                    self._begin_checkpoint(after, {part.split} if part.fills_shard else set())
        finally:  # these may have filled a shard, even if there is no space for the next one
            self._writes.extend(self._place(section, placements))
            self._placed += len(placements)
        self.settle(checkpoints_at_once(self.plane.workers))

    def _place(self, section: Section, placements: list[tuple[int, Placement]]) -> list[Future[None]]:
        """Have the data plane write the blocks of a section; return a future for each placement."""
        of_block: dict[int, list[Placement]] = {}
        for number, placement in placements:
            of_block.setdefault(number, []).append(placement)
        futures: dict[int, Iterator[Future[None]]] = {}
        for number, block in enumerate(section.blocks):
            own, last = of_block.get(number, []), number in section.finished
            if own or last:
                futures[number] = iter(self.plane.place(block.tokens, own, last=last))
        return [next(futures[number]) for number, _ in placements]

    def _file(self, split: Split) -> GrowingFile:
        """Return the file for the next tokens of a split; create it if there is none."""
        if split not in self._files:
            spec, tokens = self.spec, self._tokens[split]
            numbering = Numbering(spec.layout, spec.shard_tokens, spec.split_rule, self.manifest.digits)
            numbering.check_width(split, self._tokens)
            name, begin = numbering.name(split, self._tokens), numbering.begin(tokens)
            file = GrowingFile(name, spec.store, spec.shard_format, split, self.disk, begin)
            self._unnamed.append(file)
            file.open()
            self._files[split] = file
        return self._files[split]

    def finish(self) -> Manifest:
        """Give every file its final name, and save the manifest as complete."""
        self.settle()
        # Open files that still grow, to finish them even if this run has added nothing.
        files = list_files(self.manifest.shards)
        everything = self.spec.store.find_all(file.name for file in files)
        for file in files:
            found = everything.get(file.name)
            # If it is longer, a run was killed between naming it and recording the rest.
            if found is not None and (not found.named or found.size_bytes > file.end_bytes):
                self._file(file.split)
        dropped = self._files.pop("train", None) if self.spec.drop_short else None
        if dropped is not None:
            records = self.manifest.shards
            kept = tuple(record for record in records if record.name != dropped.name)
            counts = (record.counts for record in records if record.name == dropped.name)
            self._counts = sum(counts, self._counts)  # the input was read all the same
            self.manifest = replace(self.manifest, shards=kept)
        if self._files:
            self._begin_checkpoint(self._placed, set(SPLITS))
        self.settle()
        assert not self._checkpoints, "a complete manifest has everything"
        # Write the sidecars of several files at once; while the disk is full, wait and retry.
        finished, at_once = list_finished(self.spec.store, self.manifest), max(1, self.plane.workers)
        for first in range(0, len(finished), at_once):
            self.disk.attempt(partial(self._write_sidecars, finished[first : first + at_once]))
        manifest = self.manifest
        totals = {
            "shards": manifest.shard_count,
            "tokens": manifest.tokens,
            "documents": manifest.documents,
            "dropped_tokens": dropped.tokens if dropped else 0,
            **asdict(manifest.counts + self._counts),  # including those of a rest without tokens
        }
        self._save(replace(manifest, complete=True, totals=totals))
        if dropped is not None:  # only now: until here the saved manifest may have named it
            dropped.discard()
            self.spec.store.remove([dropped.name])
        return self.manifest

    def _write_sidecars(self, files: Sequence[FinishedFile]) -> None:
        writes = [self.plane.write_sidecars(file) for file in files]
        failures = []
        for write in writes:
            try:
                self.plane.wait(write)
            except OutputError as error:
                failures.append(error)  # raised below, so that a retry does not overlap with the first try
        if failures:
            raise failures[0]

    def _begin_checkpoint(self, after: int, whole: set[Split]) -> None:
        """End the current segments of all files, filled by the first `after` placements; the files of `whole` splits
        are complete with them."""
        segments = []
        for split in SPLITS:
            file = self._files.get(split)
            if file is not None and (file.tokens > file.begin or split in whole):
                segments.append(file.end_segment(whole=split in whole))
            if split in whole:
                self._files.pop(split, None)
        counts = Counts()
        if any(segment.tokens for segment in segments):
            counts, self._counts = self._counts, Counts()
        self._checkpoints.append(_Checkpoint(tuple(segments), after, self._end, self._taken, counts, []))

    def settle(self, most: int = 0, longest_seconds: float | None = None) -> None:
        """Seal and record what is ready, and wait until at most `most` checkpoints are left."""
        self.advance()
        while len(self._checkpoints) > most:
            first = self._checkpoints[0]
            if first.seals:
                for seal in first.seals:
                    self.plane.wait(seal, longest_seconds)
            elif self._writes:
                self.plane.wait(self._writes[0], longest_seconds)
            else:
                return  # Ctrl-C came between its placements and their futures
            self.advance()

    def advance(self) -> None:
        """Without waiting, have written segments sealed, and record sealed ones."""
        while self._writes and self._writes[0].done():
            self._writes[0].result()
            self._writes.popleft()
        while True:
            for checkpoint in self._checkpoints:
                if checkpoint.seals or checkpoint.after > self._placed - len(self._writes):
                    continue
                joins_parts = any(segment.whole and segment.begin for segment in checkpoint.segments)
                if joins_parts and checkpoint is not self._checkpoints[0]:
                    break  # to join parts, the store needs the earlier ones
                self.spec.store.check_lock()
                # All or none: if Ctrl-C came in between, half of them would look like all.
                seals = [self.plane.seal(segment) for segment in checkpoint.segments]
                checkpoint.seals.extend(seals)
            sealed = list(itertools.takewhile(self._is_sealed, self._checkpoints))
            if not sealed:
                return
            self._record(sealed)
            for _ in sealed:
                self._checkpoints.popleft()

    def _is_sealed(self, checkpoint: _Checkpoint) -> bool:
        """Return whether a checkpoint is sealed; if that failed, raise the error once it is the first checkpoint."""
        if not checkpoint.seals or not all(seal.done() for seal in checkpoint.seals):
            return False
        failures = [failure for seal in checkpoint.seals if (failure := seal.exception()) is not None]
        if failures and checkpoint is self._checkpoints[0]:
            raise failures[0]
        return not failures

    def _record(self, checkpoints: Sequence[_Checkpoint]) -> None:
        """Name complete files, and save the manifest with the new segments of all sealed checkpoints at once, because
        saving it to a bucket takes a fifth of a second."""
        self.spec.store.check_lock()
        records: list[ShardRecord] = []
        for checkpoint in checkpoints:
            for segment in checkpoint.segments:
                with output_errors(self.spec.store.folder / segment.name):
                    self.spec.store.name_file(segment)
                if segment.whole:
                    self._unnamed = [file for file in self._unnamed if file.name != segment.name]
            records += checkpoint.make_records()
        names = {record.name for record in records}
        for file in self._unnamed:  # before saving: a file that the manifest names must not be removed
            file.is_recorded = file.is_recorded or file.name in names
        # Ctrl-C may have come after some of them were recorded.
        recorded = self.manifest.shards[-len(records) :]
        self._save(self.manifest.append(*(record for record in records if record not in recorded)))
        self.on_record(records, checkpoints[-1].end)

    def _save(self, manifest: Manifest) -> None:
        """Add the totals to a manifest and save it durably."""
        self.manifest = self.add_totals(manifest)
        self.disk.attempt(lambda: self._manifest_file.save(self.manifest))
