"""Read a segment of a file of tokens back: its hash, and what is in it. `seal_segment` makes it durable, too.

A segment is what one record of the manifest describes: a whole shard, or what a checkpoint has added to a
file that grows.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.system.durable import output_error
from fineweb_shards.types import Split
from fineweb_shards.units import show_number_of

_READ_BYTES = 2**19  # larger buffers are returned to the kernel each time, and cost page faults


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that were written to a file and are not in the manifest yet."""

    path: Path  # of the file while it grows
    final: Path
    split: Split
    offset: int  # of its first byte; 0 in a whole shard, whose header belongs to the segment
    bytes: int
    tokens: int
    documents: int
    whole: bool  # the file ends with it


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a segment."""

    sha256: str
    documents: int  # number of EOTs
    highest: int  # the largest token id


def seal_segment(segment: Segment, shard_format: ShardFormat) -> str:
    """Read a segment back, check it, and sync its file; return its SHA-256.

    All its tokens must have been written. Any worker can do it, and again if it dies.
    """
    try:
        with open(segment.path, "r+b") as file:
            contents = read_contents(file, shard_format, segment.offset, segment.bytes)
            os.fsync(file.fileno())
    except OSError as error:
        raise output_error(segment.final, error) from error
    damage = find_damage(contents, shard_format, segment.documents)
    if damage:
        raise DamageError(
            f"{segment.final.name}: {damage}, when it was read back before it got its name.",
            "Memory or disk may be faulty. Everything finished is kept; the same command makes it again.",
        )
    return contents.sha256


def read_contents(file: BinaryIO, shard_format: ShardFormat, offset: int, size_bytes: int) -> Contents:
    """Read a segment in constant memory. A file that is too short gives the hash of what there is."""
    vocabulary = shard_format.vocabulary
    file.seek(offset)
    header = file.read(max(0, shard_format.header_bytes - offset))
    digest, documents, highest = hashlib.sha256(header), 0, 0
    left = size_bytes - len(header)
    while left and (block := file.read(min(left, _READ_BYTES))):
        left -= len(block)
        digest.update(block)
        tokens = shard_format.from_bytes(block)
        documents += vocabulary.count_eots(tokens)
        highest = max(highest, int(tokens.max(initial=0)))
    return Contents(digest.hexdigest(), documents, highest)


def find_damage(contents: Contents, shard_format: ShardFormat, documents: int) -> str | None:
    """Return what is wrong with the contents of a segment that should have so many documents, or None."""
    if contents.highest >= shard_format.vocabulary.size:
        return f"token {contents.highest} is outside the vocabulary"
    if contents.documents != documents:
        return f"{show_number_of(contents.documents, 'document')}, should be {documents:,}"
    return None
