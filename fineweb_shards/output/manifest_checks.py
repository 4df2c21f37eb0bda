"""Check that a manifest is consistent.

Its checksum detects changed characters. These checks find errors that already existed when the manifest was saved or
edited by hand, and they work for early manifests without a checksum. Each raises ValueError with a phrase that names
the error. None reads a token file.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.base import Numbering, ShardFormat
from fineweb_shards.stream.shuffle import MOST_IN_BUCKET, MOST_PILES, PileState
from fineweb_shards.system.json_values import expect, get
from fineweb_shards.types import SPLITS, Counts, Cursor, Cursors, Quarantined, ShardRecord, Taken

_SHA256 = re.compile("[0-9a-f]{64}")
_get_place = operator.attrgetter("file", "position", "skip_tokens")
_get_counts = operator.attrgetter(*(field.name for field in dataclasses.fields(Counts)))


def check_settings(settings: dict[str, Any], parts: Sequence[dict[str, Any]]) -> None:
    """Check the settings that the program uses, and those of each part; a resume only compares the others."""
    layout = get(settings, "layout", str)
    if layout not in LAYOUTS:
        raise ValueError(f"the layout {layout!r:.40} is unknown")
    if get(settings, "shard_tokens", int) < 1:
        raise ValueError("shard_tokens is below 1")
    get(settings, "val_seed", int)
    kinds = {"val_tokens": int, "val_documents": int, "max_tokens": int, "val_ratio": float}
    for name, kind in kinds.items():
        if settings.get(name) is not None and get(settings, name, kind) < 0:
            raise ValueError(f"{name} is negative")
    for part, name in itertools.product(parts, ("weight", "epochs")):
        if part.get(name) is not None and get(part, name, int) < 1:
            raise ValueError(f"{name} is below 1")


def check_files(parts: Sequence[Sequence[Any]]) -> None:
    """Check the fields of each part's files that a resume from the hub relies on."""
    if not parts:
        raise ValueError("it names no part of the input")
    for file in itertools.chain.from_iterable(parts):
        get(expect("a file", file, dict), "name", str)
        get(file, "content_hash", str)
        if get(file, "size_bytes", int) < 0:
            raise ValueError("the size of a file is negative")
        expect("for_validation", file.get("for_validation", False), bool)
    for files in parts:
        for_validation = [file.get("for_validation", False) for file in files]
        if for_validation != sorted(for_validation, reverse=True):
            raise ValueError("a file for validation comes after one for training")


def check_records(records: Sequence[ShardRecord], numbering: Numbering, shard_format: ShardFormat) -> None:
    """Check that each record starts where the previous one ends, in the right file."""
    done = dict.fromkeys(SPLITS, 0)
    for record in records:
        before, name = done[record.split], numbering.name(record.split, done)
        if record.name != name:
            raise ValueError(f"it names {record.name!r:.80} but should name {name}")
        if not 1 <= record.tokens <= numbering.shard_tokens - before % numbering.shard_tokens:
            raise ValueError(f"{name}: {record.tokens:,} tokens do not fit into it")
        begin = numbering.begin(before)
        first = shard_format.offset_bytes(begin)
        # The record of a file that was finished in one segment includes the header.
        if record.offset != first and (record.offset or begin):
            raise ValueError(f"{name}: a record begins at {record.offset:,}, should begin at {first:,}")
        if record.offset + record.bytes != shard_format.offset_bytes(begin + record.tokens):
            raise ValueError(f"{name}: {record.bytes:,} bytes are not {record.tokens:,} tokens")
        if record.split == "val" and done["train"] and numbering.split_rule.is_in_order:
            raise ValueError(f"{name}: tokens for validation come after those for training")
        if not 0 <= record.documents <= record.tokens:
            raise ValueError(f"{name}: {record.documents:,} documents in {record.tokens:,} tokens")
        if not _SHA256.fullmatch(record.sha256):
            raise ValueError(f"{name}: {record.sha256!r:.80} is not a SHA-256")
        if min(_get_counts(record.counts)) < 0:
            raise ValueError(f"{name}: a count is negative")
        done[record.split] += record.tokens
    val, limit = done["val"], numbering.split_rule.val_tokens
    if limit and (val > limit or (done["train"] and val < limit)):
        raise ValueError(f"there are {val:,} tokens for validation, but should be {limit:,}")


def check_cursors(ends: Sequence[Cursors], files: Sequence[int]) -> None:
    """Check that no cursor goes back; only records of the same checkpoint share an end. `files` has the number of files
    of each part."""
    last = tuple(Cursor(0, 0) for _ in files)
    for end in ends:
        if len(end) != len(files):
            raise ValueError(f"a record has {len(end)} cursors for {len(files)} parts of the input")
        for here, before, count in zip(end, last, files, strict=True):
            if min(_get_place(here)) < 0 or here.file > count:
                raise ValueError(f"a cursor is outside the input (file {here.file}, position {here.position})")
            if here != before and _get_place(here) <= _get_place(before):
                raise ValueError(f"a cursor goes back (to file {here.file}, position {here.position})")
        last = end


def check_taken(records: Sequence[Sequence[Taken]], parts: int) -> None:
    """Check that the amount a mix has taken of each of its `parts` only grows; 0: there is no mix."""
    last = (Taken(),) * parts
    for taken in records:
        if len(taken) != parts:
            raise ValueError(f"a record says how much was taken of {len(taken)} parts, but {parts} are mixed")
        for here, before in zip(taken, last, strict=True):
            if here.tokens < before.tokens or here.documents < before.documents:
                raise ValueError(f"a record has taken less of a part than the one before ({here.tokens:,} tokens)")
        last = tuple(taken)


def check_piles(piles: PileState, files: Sequence[int], mixed: int) -> None:
    """Check the state of a shuffle's first pass, whose input has `files` files in each part, `mixed` of them mixed."""
    check_cursors([piles.end], files)
    check_taken([piles.taken], mixed)
    figures = (*piles.tokens, piles.documents, piles.open_tokens, piles.list_bytes, *_get_counts(piles.counts))
    most = MOST_IN_BUCKET if piles.in_bucket else MOST_PILES
    if not 1 <= piles.count <= most or len(piles.tokens) != piles.count + 1 or min(figures) < 0:
        raise ValueError(f"its figures for {piles.count} piles are inconsistent")
    if not 0 <= piles.open_pile <= piles.count or piles.open_tokens > piles.tokens[piles.open_pile]:
        raise ValueError(f"the last document is not in pile {piles.open_pile}")
    if piles.list_sha256 and not _SHA256.fullmatch(piles.list_sha256):
        raise ValueError(f"{piles.list_sha256!r:.80} is not a SHA-256")


def check_quarantined(documents: Sequence[Quarantined], files: Sequence[int]) -> None:
    """Check that quarantined documents belong to input files; `files` has the number of files of each part."""
    for document in documents:
        exists = 0 <= document.part < len(files) and 0 <= document.file < files[document.part]
        if not exists or not _SHA256.fullmatch(document.sha256):
            raise ValueError(f"a quarantined document is not one of the input (file {document.file})")


def check_totals(totals: dict[str, Any], sums: Mapping[str, int]) -> None:
    """Check that the totals equal the `sums` of the records, and that no other count is negative."""
    for name, found in sums.items():
        if get(totals, name, int) != found:
            raise ValueError(f"it counts {totals[name]:,} {name}, but its records have {found:,}")
    get(totals, "dropped_tokens", int)
    for name, count in totals.items():
        if expect(name, count, int) < 0:
            raise ValueError(f"{name} is negative")
