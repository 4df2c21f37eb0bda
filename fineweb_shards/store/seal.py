"""Seal a segment: write the header if its file ends with it, read it back, check it, make it durable."""

from __future__ import annotations

from functools import partial

from fineweb_shards.errors import DamageError
from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.segment import Segment, find_damage, read_contents
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.own_files import open_own
from fineweb_shards.system.retry import Disk


def seal_segment(
    observer: Observer,
    segment: Segment,
    shard_format: ShardFormat,
    store: Store,
    max_wait_seconds: float,
) -> str:
    """Seal a segment, all of whose tokens are written; return its SHA-256.

    Any process can do it, and again if it dies. While the disk is full, it waits.
    """
    try:
        if segment.header and not segment.begin:
            disk = Disk(segment.path.parent, max_wait_seconds, observer)
            disk.attempt(partial(_write_header, segment))
        with open_own(segment.path, "rb") as file:
            contents = read_contents(file, shard_format, segment.offset, segment.size_bytes, segment.begin)
        damage = find_damage(contents, shard_format, segment.documents)
        if damage:
            raise DamageError(
                f"{segment.name}: {damage}, when it was read back before it got its name.",
                "Memory or disk may be faulty. Everything finished is kept; the same command makes it again.",
            )
        store.add_segment(segment, observer)
    except OSError as error:
        raise output_error(store.folder / segment.name, error) from error
    return contents.sha256


def _write_header(segment: Segment) -> None:
    """Write the header. A file that was reopened may have been finished before, with one for fewer tokens."""
    try:
        with open_own(segment.path, "r+b", buffering=0) as file:
            file.write(segment.header)
    except OSError as error:
        raise output_error(segment.path, error) from error
