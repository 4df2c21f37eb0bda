"""Find files of a manifest that are missing, cut short or too long, and drop their records.

Only lengths are compared; `reading/verify.py` looks at the contents.
"""

from __future__ import annotations

from dataclasses import replace

from fineweb_shards.store.files import OutputFile, list_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.sidecars import have_sidecars, list_finished, with_sidecars
from fineweb_shards.store.store import Store
from fineweb_shards.types import ShardRecord


def trim_to_whole_files(manifest: Manifest, store: Store) -> Manifest:
    """Return the manifest up to the last checkpoint whose files are complete; the rest is made again."""
    whole = manifest.complete
    lost: list[ShardRecord] = []
    files = list_files(manifest.shards)
    everything = store.find_all(with_sidecars(manifest, {file.name for file in files}))
    for file in files:
        found = everything.get(file.name)
        size = found.size_bytes if found else 0
        lost += [record for record in file.segments if record.offset + record.bytes > size]
        if size > file.end_bytes and not may_be_longer(manifest, file):
            lost.append(file.segments[-1])
        whole = whole and found is not None and found.named
    # Records of one checkpoint have the same end, and are kept or dropped together.
    ends = [record.end for record in manifest.shards]
    kept = manifest.shards[: min((ends.index(record.end) for record in lost), default=len(ends))]
    if whole and len(kept) == len(ends) and have_sidecars(list_finished(store, manifest), everything):
        return manifest
    if manifest.settings["val_ratio"] and manifest.totals.get("dropped_tokens"):
        kept = ()  # checkpoints contain dropped tokens together with kept ones
    return replace(manifest, shards=kept, complete=False, totals={})


def may_be_longer(manifest: Manifest, file: OutputFile) -> bool:
    """Return whether the run may have written more of a file than the manifest records."""
    one_file = manifest.layout.one_file
    return not manifest.complete and (one_file or file.tokens % manifest.settings["shard_tokens"] != 0)
