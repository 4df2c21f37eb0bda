"""The output folder while it is filled: the open file of each split, and the ledger.

A checkpoint syncs what is written of both splits, then enters it in the ledger with one cursor. So after a
crash both go on from the same place in the stream, and whatever was written behind it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from fineweb_shards.layouts.base import Layout, tokens_of
from fineweb_shards.layouts.numbering import Numbering
from fineweb_shards.store.files import growing_path, list_files
from fineweb_shards.store.leftovers import remove_leftovers, remove_outdated_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.megatron_index import write_index
from fineweb_shards.store.writer import ShardWriter
from fineweb_shards.stream.split import SIDES, Side, Split
from fineweb_shards.system.disk import Disk
from fineweb_shards.types import Counts, ShardRecord, ShardSlice


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What is written, and where."""

    folder: Path
    layout: Layout
    shard_tokens: int
    split: Split
    drop_short: bool = False  # leave out a last training shard that is not full


def open_folder(folder: Path, manifest: Manifest) -> None:
    """First of all: what the manifest does not go on with is removed, and from now on the folder is its."""
    remove_leftovers(folder, manifest)
    remove_outdated_files(folder, manifest)
    manifest.save(folder)


class Output:
    """Takes slices in order; everything it has entered in `manifest` is safe."""

    def __init__(
        self,
        spec: OutputSpec,
        manifest: Manifest,
        disk: Disk,
        sign: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    ) -> None:
        self.manifest = manifest
        self._spec = spec
        self._disk = disk
        self._sign = sign  # adds what a ledger says besides its records, before it is saved
        self._writers: dict[Side, ShardWriter] = {}
        self._counts = Counts()  # since the last checkpoint
        self._end = manifest.end

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, part: ShardSlice) -> None:
        """Write a slice; at a checkpoint, save the ledger."""
        self._counts += part.counts
        self._end = part.end
        if len(part.tokens):
            self._writer(part.side).write(part.tokens)
        if part.checkpoint:
            self._enter(self._commit({part.side} if part.fills_shard else set()))
            self._save(self.manifest)

    def finish(self) -> Manifest:
        """Give every file its name and save the ledger as complete."""
        self._reopen_growing()
        dropped = self._writers.pop("train", None) if self._spec.drop_short else None
        if dropped is not None:
            records = self.manifest.shards
            kept = tuple(record for record in records if record.name != dropped.final.name)
            lost = (record.counts for record in records if record.name == dropped.final.name)
            self._counts = sum(lost, self._counts)  # they tell of the input, which was read all the same
            self.manifest = replace(self.manifest, shards=kept)
        self._enter(self._commit(set(SIDES)))
        if self._spec.layout.has_index:
            for file in list_files(self.manifest.shards):
                self._disk.attempt(partial(write_index, self._spec.folder / file.name, file.documents))
        manifest = self.manifest
        totals = {
            "shards": len(list_files(manifest.shards)),
            "tokens": manifest.tokens,
            "documents": manifest.documents,
            "dropped_tokens": dropped.tokens if dropped else 0,
            **asdict(manifest.counts + self._counts),  # those of a rest that holds no token, too
        }
        self._save(replace(manifest, complete=True, totals=totals))
        if dropped is not None:  # not before: the ledger may still have named a part of it
            dropped.close()
            dropped.discard()
        return self.manifest

    def _save(self, manifest: Manifest) -> None:
        self.manifest = self._sign(manifest)
        self._disk.attempt(lambda: self.manifest.save(self._spec.folder))

    def _enter(self, records: list[ShardRecord]) -> None:
        if records:
            records[-1] = replace(records[-1], counts=self._counts)
            self._counts = Counts()
            self.manifest = self.manifest.append(*records)

    def _commit(self, whole: set[Side]) -> list[ShardRecord]:
        """Sync what is new in all open files; those that are `whole` get their name."""
        records = []
        for side in SIDES:
            writer = self._writers.get(side)
            if writer is None:
                continue
            if writer.has_news or side in whole:
                record = writer.commit(self._end, whole=side in whole)
                records += [record] if record.tokens else []
            if side in whole:
                self._writers.pop(side).close()
        return records

    def _writer(self, side: Side) -> ShardWriter:
        if side not in self._writers:
            spec = self._spec
            tokens = tokens_of(self.manifest.shards, side)
            numbering = Numbering(spec.layout, spec.shard_tokens, spec.split, self.manifest.digits)
            numbering.check_width(side, tokens)
            writer = ShardWriter(
                spec.folder,
                spec.layout,
                side,
                numbering.index(side, tokens),
                spec.shard_tokens,
                self._disk,
                kept_tokens=numbering.begin(tokens),
                digits=numbering.digits,
            )
            self._writers[side] = writer.__enter__()
        return self._writers[side]

    def _reopen_growing(self) -> None:
        """A run that stopped just before its end has files to finish to which nothing is added."""
        for file in list_files(self.manifest.shards):
            if growing_path(self._spec.folder / file.name).is_file():
                self._writer(file.side)
