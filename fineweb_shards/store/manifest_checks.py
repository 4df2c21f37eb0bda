"""What must hold between the parts of a manifest. A checksum finds a flipped character; these find what was
wrong when it was saved, or edited by hand, and hold for folders from before there was a checksum, too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from fineweb_shards.errors import UsageError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.numbering import Numbering
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.system.json_values import expect, get
from fineweb_shards.types import SPLITS, Cursor, Quarantined, ShardRecord

_SHA256 = re.compile("[0-9a-f]{64}")


def check_manifest(manifest: Manifest) -> None:
    """ValueError with what is wrong."""
    check_settings_kinds(manifest.settings)
    check_files(manifest.files)
    for name, version in manifest.versions.items():
        expect(f"the version of {name}", version, str)
    try:
        numbering, shard_format = manifest.numbering, manifest.shard_format
    except UsageError as error:
        raise ValueError(error.message) from None
    check_records(manifest.shards, numbering, shard_format)
    check_cursors([record.end for record in manifest.shards], len(manifest.files))
    check_quarantined(manifest.quarantined, len(manifest.files))
    if min(manifest.seconds, manifest.peak_memory_bytes, manifest.digits) < 0 or manifest.digits > 18:
        raise ValueError("a figure of the effort is negative")
    if manifest.complete:
        check_totals(manifest)


def check_settings_kinds(settings: dict[str, Any]) -> None:
    """Those that the program goes by; all others are only compared."""
    layout = get(settings, "layout", str)
    if layout not in LAYOUTS:
        raise ValueError(f"the layout {layout!r:.40} is unknown")
    if get(settings, "shard_tokens", int) < 1:
        raise ValueError("shard_tokens is below 1")
    get(settings, "val_seed", int)
    for name, kind in {"val_tokens": int, "max_tokens": int, "val_ratio": float}.items():
        if settings.get(name) is not None and get(settings, name, kind) < 0:
            raise ValueError(f"{name} is negative")


def check_files(files: Sequence[Any]) -> None:
    """The input's; they are compared with those of today."""
    for file in files:
        get(expect("a file", file, dict), "name", str)


def check_records(records: Sequence[ShardRecord], numbering: Numbering, shard_format: ShardFormat) -> None:
    """Each is where the one before it ends, in the file that it must be in."""
    done = dict.fromkeys(SPLITS, 0)
    for record in records:
        check_place(record, numbering, shard_format, done[record.split])
        if not 0 <= record.documents <= record.tokens:
            raise ValueError(f"{record.name}: {record.documents:,} documents in {record.tokens:,} tokens")
        if not _SHA256.fullmatch(record.sha256):
            raise ValueError(f"{record.name}: {record.sha256!r:.80} is no SHA-256")
        if min(dataclasses.astuple(record.counts)) < 0:
            raise ValueError(f"{record.name}: a count is negative")
        done[record.split] += record.tokens
    val, limit = done["val"], numbering.split_rule.val_tokens
    if limit and (val > limit or (done["train"] and val < limit)):
        raise ValueError(f"there are {val:,} tokens for validation, where there should be {limit:,}")


def check_place(record: ShardRecord, numbering: Numbering, shard_format: ShardFormat, before: int) -> None:
    """`before` is how many tokens of its split the records before it have."""
    begin = numbering.begin(before)
    name = numbering.name(record.split, before)
    if record.name != name:
        raise ValueError(f"it names {record.name!r:.80} where it should name {name}")
    if not 1 <= record.tokens <= numbering.shard_tokens - before % numbering.shard_tokens:
        raise ValueError(f"{name}: {record.tokens:,} tokens do not fit into it")
    first = shard_format.offset_bytes(begin)
    # A file that was whole at once is recorded with its header.
    if record.offset != first and (record.offset or begin):
        raise ValueError(f"{name}: a record begins at {record.offset:,}, should begin at {first:,}")
    if record.offset + record.bytes != shard_format.offset_bytes(begin + record.tokens):
        raise ValueError(f"{name}: {record.bytes:,} bytes are not {record.tokens:,} tokens")


def check_cursors(ends: Sequence[Cursor], files: int) -> None:
    """They grow; only the records of one checkpoint have the same end."""
    last = Cursor(0, 0)
    for end in ends:
        if min(end.file, end.position, end.skip_tokens) < 0 or end.file > files:
            raise ValueError(f"a cursor is outside the input (file {end.file}, position {end.position})")
        if end != last and _place(end) <= _place(last):
            raise ValueError(f"a cursor goes back (to file {end.file}, position {end.position})")
        last = end


def check_quarantined(documents: Sequence[Quarantined], files: int) -> None:
    """They are documents of the input."""
    for document in documents:
        if not 0 <= document.file < files or not _SHA256.fullmatch(document.sha256):
            raise ValueError(f"a quarantined document is not one of the input (file {document.file})")


def check_totals(manifest: Manifest) -> None:
    """They are the sums of the records; what was left out is counted there only."""
    names = {record.name for record in manifest.shards}
    sums = {"shards": len(names), "tokens": manifest.tokens, "documents": manifest.documents}
    for name, found in sums.items():
        if get(manifest.totals, name, int) != found:
            raise ValueError(f"it counts {manifest.totals[name]:,} {name}, its records have {found:,}")
    get(manifest.totals, "dropped_tokens", int)
    for name, count in manifest.totals.items():
        if expect(name, count, int) < 0:
            raise ValueError(f"{name} is negative")


def _place(cursor: Cursor) -> tuple[int, int, int]:
    return cursor.file, cursor.position, cursor.skip_tokens
