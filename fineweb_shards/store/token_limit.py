"""Change `--max-tokens` for a folder that already has shards: the stream is the same, only its end moves.

With a higher limit, the stream continues where the old one cut it. The last shard was cut short there, so it
is made again from the checkpoint before it; all others are kept. A stream can't be made shorter than it is.
"""

from __future__ import annotations

from dataclasses import replace

from fineweb_shards.errors import ChangedError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.sidecars import with_sidecars
from fineweb_shards.store.store import Store
from fineweb_shards.store.untracked_files import find_untracked, list_all_names
from fineweb_shards.types import ShardRecord


def move_limit(manifest: Manifest, limit: int | None, store: Store) -> Manifest:
    """Return the folder's manifest for another limit, without the records that must be made again."""
    old = manifest.settings["max_tokens"]
    if limit == old:
        return manifest
    there = manifest.tokens + manifest.totals.get("dropped_tokens", 0)
    if limit is not None and limit < there:
        raise ChangedError(
            f"--max-tokens {limit:,}: the folder holds {there:,} tokens already, and a stream that is there "
            "can't be made shorter.",
            "Raise --max-tokens or leave it out, choose another --out, or start over with --fresh.",
        )
    if not manifest.complete and limit is not None and (old is None or limit < old):
        _refuse_unrecorded_shards(manifest, store, limit)
    moved = replace(manifest, settings={**manifest.settings, "max_tokens": limit})
    if not manifest.complete or there != old:
        return moved  # not finished, or finished because the input ended
    return replace(moved, shards=_records_before_cut(manifest), complete=False, totals={})


def _refuse_unrecorded_shards(manifest: Manifest, store: Store, limit: int) -> None:
    """Raise ChangedError if the folder has a shard that a killed run named but did not record.

    With a higher limit it would be made again. With a lower one it may not belong to the stream, and a loader
    would read it all the same.
    """
    names = with_sidecars(manifest, {record.name for record in manifest.shards})
    unknown = find_untracked(list_all_names(store), manifest.layout, names)
    if unknown:
        raise ChangedError(
            f"--max-tokens {limit:,}: {unknown[0]} of this unfinished folder may come after that end.",
            "Go on with the old --max-tokens for a shard, choose another --out, or start over with --fresh.",
        )


def _records_before_cut(manifest: Manifest) -> tuple[ShardRecord, ...]:
    """Return the records that stay the same with any higher limit."""
    records, rule = manifest.shards, manifest.split_rule
    if rule.val_ratio:
        if manifest.totals.get("dropped_tokens"):
            return ()  # checkpoints contain dropped tokens together with kept ones
        return tuple(record for record in records if record.end != manifest.end)
    last = records[-1:]
    tokens = sum(record.tokens for record in records if last and record.split == last[0].split)
    fills_validation = bool(last) and last[0].split == "val" and tokens == rule.val_tokens
    if tokens % manifest.settings["shard_tokens"] == 0 or fills_validation:
        return records
    return records[:-1]
