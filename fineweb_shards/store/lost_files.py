"""Files that a manifest names and that are gone, cut short or too long: what is left to go on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fineweb_shards.store.files import OutputFile, find_file, list_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.megatron_index import index_bytes, index_path
from fineweb_shards.types import ShardRecord


def trim_to_whole_files(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest up to the last checkpoint whose files are all there: the rest is made again."""
    whole = manifest.complete
    lost: list[ShardRecord] = []
    for file in list_files(manifest.shards):
        path = find_file(folder, file.name)
        size = path.stat().st_size if path else 0
        lost += [record for record in file.segments if record.offset + record.bytes > size]
        if size > file.end_bytes and not may_be_longer(manifest, file):
            lost.append(file.segments[-1])
        whole = whole and path == folder / file.name and _has_index(manifest, path, file.documents)
    # Records of one checkpoint have the same end: a cursor holds for all of them or for none.
    ends = [record.end for record in manifest.shards]
    kept = manifest.shards[: min((ends.index(record.end) for record in lost), default=len(ends))]
    if whole and len(kept) == len(ends):
        return manifest
    if manifest.settings["val_ratio"] and manifest.totals.get("dropped_tokens"):
        kept = ()  # what was dropped was in checkpoints, together with what was not
    return replace(manifest, shards=kept, complete=False, totals={})


def may_be_longer(manifest: Manifest, file: OutputFile) -> bool:
    """Whether the run may have written more of a file than the manifest knows of."""
    one_file = manifest.layout.one_file
    return not manifest.complete and (one_file or file.tokens % manifest.settings["shard_tokens"] != 0)


def _has_index(manifest: Manifest, path: Path, documents: int) -> bool:
    """Whether the index is there and as long as it must be; `verify` looks into it."""
    if not manifest.layout.has_index:
        return True
    index = index_path(path)
    return index.is_file() and index.stat().st_size == index_bytes(path, documents, manifest.shard_format)
