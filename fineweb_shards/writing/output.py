"""Say where in the output folder tokens belong, name files that are whole, and save the manifest.

The data plane (executors/base.py) writes the tokens. A checkpoint waits until everything before it is
written, has its segments sealed (read back, hashed, synced) by the data plane, names the files that are
whole, and records it all in the manifest with one cursor for each part of the input. Several checkpoints may
be sealed at once; they are named and recorded in order. So after a crash both splits continue from the same
place in the stream, and what was written after it is cut off.

Ctrl-C may come between any two steps, and what is finished is recorded afterwards. So nothing leaves a queue
before it is done, and no checkpoint is recorded twice, or without the one before it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial

from fineweb_shards.errors import DiskFullError, Interrupted, OutputError, ShardError
from fineweb_shards.executors.base import DataPlane
from fineweb_shards.layouts.base import Numbering, tokens_of
from fineweb_shards.store.cleanup import remove_leftovers, remove_outdated_files
from fineweb_shards.store.manifest import Manifest, ManifestFile, save_manifest
from fineweb_shards.store.shard_files import list_files
from fineweb_shards.store.sidecars import FinishedFile, list_finished
from fineweb_shards.store.store import OutputSpec, Segment, Store
from fineweb_shards.stream.packer import Packer
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import (
    SPLITS,
    Counts,
    Cursors,
    HeldTokens,
    Placement,
    ShardRecord,
    ShardSlice,
    Split,
    Tokens,
)
from fineweb_shards.writing.growing_file import GrowingFile

# How many checkpoints may be sealed at once, beside the one that is being written: hashing one file takes a
# core for a tenth of a second. More would only mean more to lose in a crash.
_MOST_CHECKPOINTS = 8
_MOST_RECORDS = len(SPLITS) * (2 + _MOST_CHECKPOINTS)  # of all checkpoints at once
_LONGEST_LAST_SECONDS = 3.0  # for each step of recording what is finished when a run stops early


def begin_output(store: Store, manifest: Manifest) -> None:
    """Remove files that `manifest` does not continue, then save it: the first step of every run."""
    _abort_uploads(store, manifest)
    remove_leftovers(store, manifest)
    remove_outdated_files(store, manifest)
    save_manifest(manifest, store)


def make_packer(spec: OutputSpec, manifest: Manifest, max_tokens: int | None) -> Packer:
    """Return the packer of a stream that continues after what `manifest` records, and ends after `max_tokens`
    in all."""
    return Packer(
        spec.shard_tokens,
        split_rule=spec.split_rule,
        one_file=spec.layout.one_file,
        eot_first=spec.layout.eot_first,
        done=manifest.done,
        starts=manifest.end,
        max_tokens=None if max_tokens is None else max_tokens - manifest.tokens,
    )


def _abort_uploads(store: Store, manifest: Manifest) -> None:
    layout = manifest.layout
    store.abort_uploads(lambda name: layout.owns(name) or layout.owns_index(name))


def checkpoints_at_once(workers: int) -> int:
    """Return how many checkpoints may be there that are not recorded."""
    return 1 + min(workers, _MOST_CHECKPOINTS)


def shards_at_once(workers: int) -> int:
    """Return how many files may be there that are not recorded: both splits', and those being sealed."""
    return len(SPLITS) + checkpoints_at_once(workers)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Segments to record together, once the first `after` placements are written and the segments sealed."""

    segments: tuple[Segment, ...]
    after: int
    end: Cursors
    counts: Counts
    seals: list[Future[str]]  # their SHA-256; empty until all is written

    def make_records(self) -> list[ShardRecord]:
        """Return the records of the segments, once they are sealed; the last one has the counts."""
        records = [
            _make_record(segment, seal.result(), self.end)
            for segment, seal in zip(self.segments, self.seals, strict=True)
            if segment.tokens
        ]
        return [*records[:-1], *(replace(record, counts=self.counts) for record in records[-1:])]


class Output:
    """Places blocks in their order. Everything that `manifest` records is durable. `on_record` is called with
    the new records of each checkpoint, and its place in the stream."""

    def __init__(
        self,
        spec: OutputSpec,
        manifest: Manifest,
        plane: DataPlane,
        disk: Disk,
        *,
        add_totals: Callable[[Manifest], Manifest] = lambda manifest: manifest,
        on_record: Callable[[Sequence[ShardRecord], Cursors], None] = lambda records, end: None,
    ) -> None:
        self.manifest = manifest
        self._manifest_file = ManifestFile(spec.store)
        self._spec = spec
        self._plane = plane
        self._disk = disk
        self._add_totals = add_totals  # adds seconds, memory and the like to a manifest before it is saved
        self._on_record = on_record
        self._tokens = {split: tokens_of(manifest.shards, split) for split in SPLITS}  # placed so far
        self._files: dict[Split, GrowingFile] = {}  # to which the next tokens belong
        self._unnamed: list[GrowingFile] = []  # these, and those that are full but not named yet
        self._writes: deque[Future[None]] = deque()  # of placements, in order, that may not be written yet
        self._placed = 0  # placements
        self._checkpoints: deque[_Checkpoint] = deque()  # that are not in the manifest yet
        self._counts = Counts()  # since the last checkpoint
        self._end = manifest.end

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Unless the disk is at fault, record what is finished, however the run ends; then remove files that
        the manifest does not name."""
        if isinstance(error, DiskFullError):
            self._give_up_unwritten()
        if isinstance(error, (ShardError, Interrupted)) and type(error) is not OutputError:
            # Not for long, and the first error is the one to tell.
            self._spec.store.hurry(_LONGEST_LAST_SECONDS)
            with contextlib.suppress(ShardError, Interrupted, TimeoutError):
                self._settle(0, longest_seconds=_LONGEST_LAST_SECONDS)
        for file in self._unnamed:
            if not file.is_recorded:
                file.discard()

    @property
    def segments(self) -> int:
        """The number of segments so far, those included that are not in the manifest yet."""
        return len(self.manifest.shards) + sum(len(one.segments) for one in self._checkpoints)

    def add(self, tokens: Tokens | HeldTokens, slices: Iterable[ShardSlice]) -> None:
        """Place a block, given the slices that it is cut into."""
        placements: list[Placement] = []
        try:
            for part in slices:
                self._counts += part.counts
                self._end = part.end
                if part.tokens:
                    placements.append(self._file(part.split).place(part))
                    self._tokens[part.split] += part.tokens
                if part.checkpoint:
                    after = self._placed + len(placements)
                    self._begin_checkpoint(after, {part.split} if part.fills_shard else set())
        finally:  # what is placed may have filled a shard, even if there is no space for the next one
            self._writes.extend(self._plane.place(tokens, placements))
            self._placed += len(placements)
        self._settle(checkpoints_at_once(self._plane.workers))

    def finish(self) -> Manifest:
        """Give every file its final name, and save the manifest as complete."""
        self._settle(0)
        self._reopen_growing()
        dropped = self._files.pop("train", None) if self._spec.drop_short else None
        if dropped is not None:
            records = self.manifest.shards
            kept = tuple(record for record in records if record.name != dropped.name)
            counts = (record.counts for record in records if record.name == dropped.name)
            self._counts = sum(counts, self._counts)  # kept, because the input was read all the same
            self.manifest = replace(self.manifest, shards=kept)
        if self._files:
            self._begin_checkpoint(self._placed, set(SPLITS))
        self._settle(0)
        assert not self._checkpoints, "a complete manifest has everything"
        self._write_sidecars()
        manifest = self.manifest
        totals = {
            "shards": manifest.shard_count,
            "tokens": manifest.tokens,
            "documents": manifest.documents,
            "dropped_tokens": dropped.tokens if dropped else 0,
            **asdict(manifest.counts + self._counts),  # with those of a rest that has no token
        }
        _abort_uploads(self._spec.store, manifest)  # of workers that died, or that were not answered
        self._save(replace(manifest, complete=True, totals=totals))
        if dropped is not None:  # only now: until here the saved manifest may have named a part of it
            dropped.discard()
            self._spec.store.remove([dropped.name])
        return self.manifest

    def _write_sidecars(self) -> None:
        """Have all sidecars written, of several files at once; while the disk is full, wait and try again."""
        files = list_finished(self._spec.store, self.manifest)
        at_once = max(1, self._plane.workers)
        for first in range(0, len(files), at_once):
            self._disk.attempt(partial(self._write_some_sidecars, files[first : first + at_once]))

    def _write_some_sidecars(self, files: Sequence[FinishedFile]) -> None:
        writes = [self._plane.write_sidecars(file) for file in files]
        failures = []
        for write in writes:
            try:
                self._plane.wait(write)
            except OutputError as error:
                failures.append(error)  # not raised yet: a second try must not meet the rest of the first
        if failures:
            raise failures[0]

    def _give_up_unwritten(self) -> None:
        """Free the space of files that are not whole, so that those that are can be recorded."""
        written = deque(itertools.takewhile(lambda one: one.done() and not one.exception(), self._writes))
        self._placed, self._writes = self._written + len(written), written
        self._checkpoints = deque(one for one in self._checkpoints if one.after <= self._placed)
        whole = {segment.path for checkpoint in self._checkpoints for segment in checkpoint.segments}
        for file in self._unnamed:
            if not file.is_recorded:
                file.discard(kept=whole)

    # Checkpoints

    def _begin_checkpoint(self, after: int, whole: set[Split]) -> None:
        """End the segments of all files, which the first `after` placements have filled; the files of `whole`
        splits are finished with it."""
        segments = []
        for split in SPLITS:
            file = self._files.get(split)
            if file is not None and (file.has_open_segment or split in whole):
                segments.append(file.end_segment(whole=split in whole))
            if split in whole:
                self._files.pop(split, None)
        counts = Counts()
        if any(segment.tokens for segment in segments):
            counts, self._counts = self._counts, Counts()
        self._checkpoints.append(_Checkpoint(tuple(segments), after, self._end, counts, []))

    def _settle(self, most: int, longest_seconds: float | None = None) -> None:
        """Seal and record what is ready; wait until at most `most` checkpoints are left."""
        self.advance()
        while len(self._checkpoints) > most:
            first = self._checkpoints[0]
            if first.seals:
                for seal in first.seals:
                    self._plane.wait(seal, longest_seconds)
            elif self._writes:
                self._plane.wait(self._writes[0], longest_seconds)
            else:
                return  # an interruption has come between its placements and their futures
            self.advance()

    def advance(self) -> None:
        """Do what can be done without waiting: have segments sealed, record those that are."""
        while self._writes and self._writes[0].done():
            self._writes[0].result()
            self._writes.popleft()
        self._begin_seals()
        while sealed := list(itertools.takewhile(self._is_sealed, self._checkpoints)):
            self._record(sealed)
            for _ in sealed:
                self._checkpoints.popleft()
            self._begin_seals()

    def _begin_seals(self) -> None:
        """Have segments sealed that are written."""
        for checkpoint in self._checkpoints:
            if not checkpoint.seals and checkpoint.after <= self._written:
                joins_parts = any(segment.whole and segment.begin for segment in checkpoint.segments)
                if joins_parts and checkpoint is not self._checkpoints[0]:
                    return  # a store that puts parts together needs those before it
                self._spec.store.check_lock()
                # All or none: after Ctrl-C in between, half of them would look like all.
                seals = [self._plane.seal(segment) for segment in checkpoint.segments]
                checkpoint.seals.extend(seals)

    @property
    def _written(self) -> int:
        """The number of placements that are written."""
        return self._placed - len(self._writes)

    def _is_sealed(self, checkpoint: _Checkpoint) -> bool:
        """Return whether a checkpoint is sealed; raise the error if it can't be, once it is the first."""
        if not checkpoint.seals or not all(seal.done() for seal in checkpoint.seals):
            return False
        failures = [failure for seal in checkpoint.seals if (failure := seal.exception()) is not None]
        if failures and checkpoint is self._checkpoints[0]:
            raise failures[0]
        return not failures

    def _record(self, checkpoints: Sequence[_Checkpoint]) -> None:
        """Name the files that are whole, and save the manifest with the new segments. All checkpoints that
        are sealed are recorded together: saving takes a bucket a fifth of a second."""
        self._spec.store.check_lock()
        records: list[ShardRecord] = []
        for checkpoint in checkpoints:
            for segment in checkpoint.segments:
                self._name(segment)
            records += checkpoint.make_records()
        names = {record.name for record in records}
        for file in self._unnamed:  # before the manifest names it: from then on it must not be removed
            file.is_recorded = file.is_recorded or file.name in names
        # An interruption may have come after some of them were recorded.
        recorded = self.manifest.shards[-_MOST_RECORDS:]
        self._save(self.manifest.append(*(record for record in records if record not in recorded)))
        self._on_record(records, checkpoints[-1].end)

    def _name(self, segment: Segment) -> None:
        """Give a file that is whole its name; make sure that one that grows on will be found again."""
        store = self._spec.store
        try:
            store.name_file(segment)
        except OSError as error:
            raise output_error(store.folder / segment.name, error) from error
        if segment.whole:
            self._unnamed = [file for file in self._unnamed if file.name != segment.name]

    def _save(self, manifest: Manifest) -> None:
        """Add the totals to a manifest and save it durably."""
        self.manifest = self._add_totals(manifest)
        self._disk.attempt(lambda: self._manifest_file.save(self.manifest))

    # Files

    def _file(self, split: Split) -> GrowingFile:
        """Return the file to which the next tokens of a split belong; create it if there is none."""
        if split not in self._files:
            spec, tokens = self._spec, self._tokens[split]
            numbering = Numbering(spec.layout, spec.shard_tokens, spec.split_rule, self.manifest.digits)
            numbering.check_width(split, self._tokens)
            file = GrowingFile(
                numbering.name(split, self._tokens),
                spec.store,
                spec.shard_format,
                split,
                self._disk,
                recorded_tokens=numbering.begin(tokens),
            )
            self._unnamed.append(file)
            file.open()
            self._files[split] = file
        return self._files[split]

    def _reopen_growing(self) -> None:
        """Open files that still grow, so that they are finished even if this run has added nothing."""
        files = list_files(self.manifest.shards)
        everything = self._spec.store.find_all(file.name for file in files)
        for file in files:
            found = everything.get(file.name)
            # One that is longer was named by a run that was killed before it recorded the rest.
            if found is not None and (not found.named or found.size_bytes > file.end_bytes):
                self._file(file.split)


def _make_record(segment: Segment, sha256: str, end: Cursors) -> ShardRecord:
    return ShardRecord(
        name=segment.name,
        split=segment.split,
        offset=segment.offset,
        tokens=segment.tokens,
        documents=segment.documents,
        bytes=segment.size_bytes,
        sha256=sha256,
        end=end,
        counts=Counts(),
    )
