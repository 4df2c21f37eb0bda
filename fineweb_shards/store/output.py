"""Write slices to the output folder: to the open file of each split, and at checkpoints to the manifest.

A checkpoint syncs what is written of both splits, then records it in the manifest with one cursor. So after a
crash both continue from the same place in the stream, and what was written after it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from fineweb_shards.layouts.base import Layout, tokens_of
from fineweb_shards.layouts.numbering import Numbering
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import growing_path, list_files
from fineweb_shards.store.leftovers import remove_leftovers, remove_outdated_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import save_manifest
from fineweb_shards.store.megatron_index import write_index
from fineweb_shards.store.writer import ShardWriter
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.disk import Disk
from fineweb_shards.types import SPLITS, Counts, ShardRecord, ShardSlice, Split
from fineweb_shards.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What to write, and where."""

    folder: Path
    layout: Layout
    vocabulary: Vocabulary
    shard_tokens: int
    split_rule: SplitRule
    drop_short: bool = False  # delete a last training shard that is not full

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)


def open_folder(folder: Path, manifest: Manifest) -> None:
    """Remove files that `manifest` does not continue, then save it: the first step of every run."""
    remove_leftovers(folder, manifest)
    remove_outdated_files(folder, manifest)
    save_manifest(manifest, folder)


class Output:
    """Writes slices in their order. Everything that `manifest` records is durable."""

    def __init__(
        self,
        spec: OutputSpec,
        manifest: Manifest,
        disk: Disk,
        add_totals: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    ) -> None:
        self.manifest = manifest
        self._spec = spec
        self._disk = disk
        self._add_totals = add_totals  # adds seconds, memory and the like to a manifest before it is saved
        self._writers: dict[Split, ShardWriter] = {}
        self._counts = Counts()  # since the last checkpoint
        self._end = manifest.end

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, part: ShardSlice) -> None:
        """Write a slice; at a checkpoint, save the manifest."""
        self._counts += part.counts
        self._end = part.end
        if len(part.tokens):
            self._writer(part.split).write(part.tokens, part.documents)
        if part.checkpoint:
            self._record(self._commit({part.split} if part.fills_shard else set()))
            self._save(self.manifest)

    def finish(self) -> Manifest:
        """Give every file its final name, and save the manifest as complete."""
        self._reopen_growing()
        dropped = self._writers.pop("train", None) if self._spec.drop_short else None
        if dropped is not None:
            records = self.manifest.shards
            kept = tuple(record for record in records if record.name != dropped.final.name)
            counts = (record.counts for record in records if record.name == dropped.final.name)
            self._counts = sum(counts, self._counts)  # kept, because the input was read all the same
            self.manifest = replace(self.manifest, shards=kept)
        self._record(self._commit(set(SPLITS)))
        if self._spec.layout.has_index:
            for file in list_files(self.manifest.shards):
                path = self._spec.folder / file.name
                self._disk.attempt(partial(write_index, path, file.documents, self._spec.shard_format))
        manifest = self.manifest
        totals = {
            "shards": manifest.shard_count,
            "tokens": manifest.tokens,
            "documents": manifest.documents,
            "dropped_tokens": dropped.tokens if dropped else 0,
            **asdict(manifest.counts + self._counts),  # with those of a rest that has no token
        }
        self._save(replace(manifest, complete=True, totals=totals))
        if dropped is not None:  # only now: until here the saved manifest may have named a part of it
            dropped.close()
            dropped.discard()
        return self.manifest

    def _save(self, manifest: Manifest) -> None:
        """Add the totals to a manifest and save it durably."""
        self.manifest = self._add_totals(manifest)
        self._disk.attempt(lambda: save_manifest(self.manifest, self._spec.folder))

    def _record(self, records: list[ShardRecord]) -> None:
        """Append a checkpoint's records to the manifest; the last one gets the counts."""
        if records:
            records[-1] = replace(records[-1], counts=self._counts)
            self._counts = Counts()
            self.manifest = self.manifest.append(*records)

    def _commit(self, whole: set[Split]) -> list[ShardRecord]:
        """Sync the new tokens of all open files; rename those of `whole` splits. Return the records."""
        records = []
        for split in SPLITS:
            writer = self._writers.get(split)
            if writer is None:
                continue
            if writer.has_unrecorded_tokens or split in whole:
                record = writer.commit(self._end, whole=split in whole)
                records += [record] if record.tokens else []
            if split in whole:
                self._writers.pop(split).close()
        return records

    def _writer(self, split: Split) -> ShardWriter:
        """Return the open writer of a split; open one if there is none."""
        if split not in self._writers:
            spec = self._spec
            tokens = tokens_of(self.manifest.shards, split)
            numbering = Numbering(spec.layout, spec.shard_tokens, spec.split_rule, self.manifest.digits)
            numbering.check_width(split, tokens)
            writer = ShardWriter(
                spec.folder,
                spec.shard_format,
                split,
                numbering.index(split, tokens),
                spec.shard_tokens,
                self._disk,
                kept_tokens=numbering.begin(tokens),
                digits=numbering.digits,
            )
            self._writers[split] = writer.__enter__()
        return self._writers[split]

    def _reopen_growing(self) -> None:
        """Open files that still grow, so that they are finished even if this run has added nothing."""
        for file in list_files(self.manifest.shards):
            if growing_path(self._spec.folder / file.name).is_file():
                self._writer(file.split)
