"""Define what a sidecar is: a small file beside a file of tokens, usually with the positions of its documents.

It is a pure function of the finished file: of its length and the positions of its EOTs, which arrive in blocks, so that
memory is constant. output/sidecars.py reads and writes the files.

Some layouts have their own. `DocumentIndex` is for any layout (`--index`): the token offset of each document that
starts in a file; for `train_00000.ds` it is `index/train_00000.npy`, a NumPy array of int64. It has a separate folder,
because some readers open every file in theirs with `train` or `val` in its name. A document that began in an earlier
file has no start in this one.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar

import numpy as np

from fineweb_shards.types import Dtype, Positions
from fineweb_shards.vocabulary import Vocabulary

INDEX_FOLDER = "index"
NPY_HEADER_BYTES = 128  # for an array of any length
_OFFSETS = np.dtype("<i8")


def npy_header(length: int, dtype: Dtype) -> bytes:
    """Return the header of a one-dimensional array of `length` numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype.str, "fortran_order": False, "shape": (length,)})
    header = buffer.getvalue()
    assert len(header) == NPY_HEADER_BYTES
    return header


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts about a finished file of tokens that need no search."""

    tokens: int
    dtype: Dtype  # of its tokens
    vocabulary: Vocabulary
    eot_first: bool
    eots: int
    follows_eot: bool  # an EOT precedes the file in the stream, or nothing does
    ends_with_eot: bool

    @property
    def ends(self) -> int:
        """How many documents end here if EOT comes after them; one that continues in the next file also counts."""
        return self.eots + (not self.ends_with_eot)

    @property
    def starts(self) -> int:
        """How many documents start here."""
        return self.eots if self.eot_first else self.follows_eot + self.eots - self.ends_with_eot


@dataclass(frozen=True, slots=True)
class SidecarPart:
    """Bytes of a sidecar, and their offset."""

    offset: int
    data: bytes


class Sidecar:
    """A stateless description of a sidecar."""

    endings: ClassVar[tuple[str, str]]  # of the name of the file of tokens, and what the sidecar's has instead

    def name_for(self, shard_name: str) -> str:
        """Return the sidecar's name in the output folder for a file of tokens."""
        return shard_name.removesuffix(self.endings[0]) + self.endings[1]

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        """Yield the sidecar's bytes; `eots` has the positions of the EOTs in blocks, none of them empty."""
        raise NotImplementedError

    def parts(self, file: FileFacts, eots: Iterable[Positions]) -> Iterator[SidecarPart]:
        """Yield the same with offsets. One whose bytes are not known in order overrides this instead of `blocks`."""
        offset = 0
        for block in self.blocks(file, eots):
            yield SidecarPart(offset, block)
            offset += len(block)

    def size_bytes(self, file: FileFacts) -> int | None:
        """Return the sidecar's length; None if only a search of the file could tell."""
        return None


def parts_of_all(
    sidecars: Collection[Sidecar], file: FileFacts, eots: Iterable[Positions]
) -> Iterator[tuple[Sidecar, SidecarPart]]:
    """Yield the parts of several sidecars in one pass over the EOTs. The sidecar with most waiting blocks comes next,
    so that only a few wait. (`itertools.tee` keeps at least 57 blocks, too many where all tokens are EOTs.)"""
    blocks = iter(eots)
    waiting: dict[Sidecar, deque[Positions]] = {sidecar: deque() for sidecar in sidecars}

    def read_blocks(own: deque[Positions]) -> Iterator[Positions]:
        while True:
            if not own:
                block = next(blocks, None)
                if block is None:
                    return
                for one in waiting.values():
                    one.append(block)
                del block
            yield own.popleft()

    parts = {sidecar: sidecar.parts(file, read_blocks(own)) for sidecar, own in waiting.items()}
    while parts:
        sidecar = max(parts, key=lambda one: len(waiting[one]))
        part = next(parts[sidecar], None)
        if part is None:
            del parts[sidecar], waiting[sidecar]  # it needs no more blocks
        else:
            yield sidecar, part


def document_ends(file: FileFacts, eots: Iterable[Positions]) -> Iterator[Positions]:
    """Yield the positions at which documents end, if EOT comes after each. Tokens after the last EOT, of a document
    that continues in the next file or was cut by --max-tokens, count as a document."""
    for places in eots:
        yield places + 1
    if not file.ends_with_eot:
        yield np.array([file.tokens], np.int64)


class DocumentIndex(Sidecar):
    """Where documents start; the EOT before a document belongs to it."""

    def name_for(self, shard_name: str) -> str:
        return f"{INDEX_FOLDER}/{PurePath(shard_name).stem}.npy"

    def size_bytes(self, file: FileFacts) -> int:
        return NPY_HEADER_BYTES + _OFFSETS.itemsize * file.starts

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        starts = eots
        if not file.eot_first:
            first = [np.zeros(1, np.int64)] if file.follows_eot else []
            # Nothing starts after an EOT that ends the file.
            after = (places[places + 1 < file.tokens] + 1 for places in eots)
            starts = itertools.chain(first, after)
        yield npy_header(file.starts, _OFFSETS)
        yield from (block.astype(_OFFSETS).tobytes() for block in starts)
