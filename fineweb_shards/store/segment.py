"""Read a segment of a file of tokens back: its hash, and what is in it.

A segment is what one record of the manifest describes: a whole shard, or what a checkpoint has added to a
file that grows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.types import Split
from fineweb_shards.units import show_number_of

_READ_BYTES = 2**19  # larger buffers are returned to the kernel each time, and cost page faults


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that were written to a file and are not in the manifest yet."""

    path: Path  # of the file that the workers have written
    begin: int  # the byte of the finished file with which that one begins
    name: str  # of the finished file
    split: Split
    offset: int  # of its first byte in the finished file; 0 in a whole shard, whose header belongs to it
    size_bytes: int
    tokens: int
    documents: int
    whole: bool  # the file ends with it
    header: bytes = b""  # of the whole file, which is known when it ends

    @property
    def end(self) -> int:
        """The byte of the finished file after its last one."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a segment."""

    sha256: str
    documents: int  # number of EOTs
    highest: int  # the largest token id


def read_contents(
    file: BinaryIO, shard_format: ShardFormat, offset: int, size_bytes: int, begin: int = 0
) -> Contents:
    """Read a segment in constant memory. A file that is too short gives the hash of what there is; `begin` is
    the byte of the finished file with which this one begins."""
    vocabulary = shard_format.vocabulary
    file.seek(offset - begin)
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
