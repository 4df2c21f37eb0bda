"""Decide what a resume keeps of a folder: settings must match, and records must still be true.

Other settings or another vocabulary would give other bytes, and are refused. `--max-tokens` may change: the stream is
the same, only its end moves. With a higher limit it continues where the old one cut it: the last shard, cut short
there, is made again from the checkpoint before it, and all others are kept. Records of missing, truncated or overlong
files are dropped, with all later ones. Only lengths are compared here; `reading/verify.py` reads the contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fineweb_shards.errors import ChangedError, concerning
from fineweb_shards.output.cleanup import find_untracked, list_all_names, our_names, refuse_untracked_shards
from fineweb_shards.output.manifest import PART_SETTINGS, Manifest
from fineweb_shards.output.shard_files import OutputFile, list_files
from fineweb_shards.output.sidecars import have_sidecars, list_finished, with_sidecars
from fineweb_shards.output.store import Store
from fineweb_shards.types import Quarantined, ShardRecord
from fineweb_shards.vocabulary import Vocabulary

_SOURCES = ("exported_from", "mixed_from")  # last, because --shuffle makes one of the other


def check_settings(before: Manifest, now: Manifest, defaults: Mapping[str, Any]) -> None:
    """Raise ChangedError if the vocabulary, or a setting that affects the output, differs from when the folder was
    begun. A setting that did not exist then counts as its default, which keeps the old behaviour."""
    if len(before.parts) != len(now.parts):
        counts = f"{len(before.parts):,} parts when this folder was begun and has {len(now.parts):,} now."
        raise ChangedError(f"The input had {counts}")
    for number, (old_part, new_part) in enumerate(zip(before.parts, now.parts, strict=True), 1):
        old_settings, new_settings = before.settings | old_part.settings, now.settings | new_part.settings
        # The folder to export from may have been renamed.
        names = (old_settings.keys() | new_settings.keys()) - {"weight", "folder"}
        for name in sorted(names, key=lambda name: (name in _SOURCES, name)):
            default = defaults.get(name)
            old, new = old_settings.get(name, default), new_settings.get(name, default)
            if old != new and name in _SOURCES:
                raise ChangedError("The shards to export differ from those with which this folder was begun.")
            several = len(before.parts) > 1 and name in PART_SETTINGS
            with concerning(f"Part {number} ({old_part.label})" if several else ""):
                if old != new:
                    # A dataset without a split was given by the address of its files.
                    is_address = name in ("dataset", "name", "revision") and new_settings.get("split") == ""
                    raise _changed_error("--input" if is_address else f"--{name.replace('_', '-')}", old, new)
    # All together: a part's weight means nothing without the others'.
    old_weights, new_weights = ([part.settings.get("weight") for part in one.parts] for one in (before, now))
    if old_weights != new_weights:
        old, new = (":".join(map(str, filter(None, weights))) for weights in (old_weights, new_weights))
        raise _changed_error("--weight", old, new)
    if before.vocabulary != now.vocabulary:
        raise _changed_error("The vocabulary", show_vocabulary(before.vocabulary), show_vocabulary(now.vocabulary))


def show_vocabulary(vocabulary: Vocabulary) -> str:
    """Return the name and distinguishing features of a vocabulary."""
    pattern = f", pattern {vocabulary.pattern:.40}" if vocabulary.pattern else ""
    hashed = f"SHA-256 {vocabulary.sha256[:8]}"
    return f"{vocabulary.name} ({vocabulary.size:,} ids, EOT {vocabulary.eot}, {hashed}{pattern})"


def _changed_error(what: str, old: Any, new: Any) -> ChangedError:
    def show(value: Any) -> str:
        if value is None or value == "":
            return "not set"
        return f"{value:,}" if isinstance(value, int) else str(value).replace("\n", "\\n")

    return ChangedError(f"{what} was {show(old)} when this folder was begun and is {show(new)} now.")


def check_batch_bytes(documents: Sequence[Quarantined], batch_bytes: int) -> None:
    """Raise ChangedError if pieces of long documents would be cut elsewhere than when quarantined."""
    for document in documents:
        if document.piece_of_bytes not in (0, batch_bytes):
            raise ChangedError(
                f"--batch-bytes was {document.piece_of_bytes:,} when a piece of a document went to "
                f"quarantine and is {batch_bytes:,} now."
            )


def move_limit(manifest: Manifest, limit: int | None, store: Store) -> Manifest:
    """Return the folder's manifest for another limit, without the records that must be made again."""
    old = manifest.settings["max_tokens"]
    if limit == old:
        return manifest
    there = manifest.tokens + manifest.totals.get("dropped_tokens", 0)
    if limit is not None and limit < there:
        raise ChangedError(
            f"--max-tokens {limit:,}: the folder already has {there:,} tokens, and --max-tokens can't "
            "shrink existing output.",
            "Raise --max-tokens or leave it out, choose another --out, or start over with --fresh.",
        )
    if not manifest.complete and limit is not None and (old is None or limit < old):
        # A killed run may have renamed a shard without recording it. With a higher limit it would be made again. With a
        # lower one it may not belong to the stream, but a loader would still read it.
        names = with_sidecars(manifest, {record.name for record in manifest.shards})
        unknown = find_untracked(list_all_names(store), manifest.layout, names)
        if unknown:
            raise ChangedError(
                f"--max-tokens {limit:,}: {unknown[0]} of this unfinished folder may come after that end.",
                "Resume with the old --max-tokens for a shard, choose another --out, or start over with --fresh.",
            )
    moved = replace(manifest, settings={**manifest.settings, "max_tokens": limit})
    if not manifest.complete or there != old:
        return moved  # not finished, or finished because the input ended
    return replace(moved, shards=_records_before_cut(manifest), complete=False, totals={})


def _records_before_cut(manifest: Manifest) -> tuple[ShardRecord, ...]:
    """Return the records that are the same with any higher limit."""
    records, rule = manifest.shards, manifest.split_rule
    if rule.val_ratio:
        if manifest.totals.get("dropped_tokens"):
            return ()  # checkpoints mix dropped tokens with kept ones
        return tuple(record for record in records if record.end != manifest.end)
    last = records[-1:]
    tokens = sum(record.tokens for record in records if last and record.split == last[0].split)
    fills_validation = bool(last) and last[0].split == "val" and tokens == rule.val_tokens
    if tokens % manifest.settings["shard_tokens"] == 0 or fills_validation:
        return records
    return records[:-1]


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
    # Records of one checkpoint share an end, and are kept or dropped together.
    ends = [record.end for record in manifest.shards]
    kept = manifest.shards[: min((ends.index(record.end) for record in lost), default=len(ends))]
    if whole and len(kept) == len(ends) and have_sidecars(list_finished(store, manifest), everything):
        return manifest
    if manifest.settings["val_ratio"] and manifest.totals.get("dropped_tokens"):
        kept = ()  # checkpoints mix dropped tokens with kept ones
    return replace(manifest, shards=kept, complete=False, totals={})


def may_be_longer(manifest: Manifest, file: OutputFile) -> bool:
    """Return whether the run may have written more of a file than the manifest records."""
    one_file = manifest.layout.one_file
    return not manifest.complete and (one_file or file.tokens % manifest.settings["shard_tokens"] != 0)


def add_index(manifest: Manifest, store: Store, *, asked: bool) -> Manifest:
    """Return the folder's manifest, with an index if this run asks for one. An index can be added at any time, because
    it does not change the shards; only --fresh removes it. OutputError if foreign files have the names of an index."""
    if manifest.index or not asked:
        return manifest
    refuse_untracked_shards(store, manifest.layout, our_names(store, manifest))
    return replace(manifest, index=True)
