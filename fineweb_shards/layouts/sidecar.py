"""Define what a sidecar is: a small file that goes with a file of tokens, mostly where its documents are.

It is a pure function of the finished file: of its length, and of the positions of its EOTs, which are given a block at
a time, so that memory is constant. Nothing here reads or writes a file: store/sidecars.py does.

Some layouts have their own. `DocumentIndex` is for any layout (`--index`): the token offset of each document that
starts in a file. That of `train_00000.ds` is `index/train_00000.npy`, a NumPy array of int64. It has a folder of its
own because some readers open whatever in theirs has `train` or `val` in its name. A document that began in an earlier
file has no start in this one.
"""

from __future__ import annotations

import io
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from fineweb_shards.types import Dtype, Positions
from fineweb_shards.vocabulary import Vocabulary

INDEX_FOLDER = "index"
NPY_HEADER_BYTES = 128  # for a row of any length
_OFFSETS = np.dtype("<i8")


def npy_header(length: int, dtype: Dtype) -> bytes:
    """Return what comes before the data of a row of `length` numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype.str, "fortran_order": False, "shape": (length,)})
    header = buffer.getvalue()
    assert len(header) == NPY_HEADER_BYTES
    return header


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a finished file of tokens without searching it."""

    tokens: int
    dtype: Dtype  # of its tokens
    vocabulary: Vocabulary
    eot_first: bool
    eots: int
    follows_eot: bool  # the token before its first one in the stream is an EOT, or there is none
    ends_with_eot: bool

    @property
    def ends(self) -> int:
        """How many documents end here if EOT comes after them; one that continues in the next file counts."""
        return self.eots + (not self.ends_with_eot)

    @property
    def starts(self) -> int:
        """How many documents start here."""
        return self.eots if self.eot_first else self.follows_eot + self.eots - self.ends_with_eot


@dataclass(frozen=True, slots=True)
class SidecarPart:
    """Bytes of a sidecar, for a given offset."""

    offset: int
    data: bytes


class Sidecar(ABC):
    """The description of a sidecar. It has no state."""

    @abstractmethod
    def name_for(self, shard_name: str) -> str:
        """Return the sidecar's name, in the output folder, for a file of tokens."""

    @abstractmethod
    def parts(self, file: FileFacts, eots: Iterable[Positions]) -> Iterator[SidecarPart]:
        """Yield the sidecar's bytes; `eots` are the positions of the EOTs in blocks, none of them empty."""

    def size_bytes(self, file: FileFacts) -> int | None:
        """Return the sidecar's length; None if it can't be known without searching the file."""
        return None


def parts_of_all(
    sidecars: Collection[Sidecar], file: FileFacts, eots: Iterable[Positions]
) -> Iterator[tuple[Sidecar, SidecarPart]]:
    """Yield the parts of several sidecars, by one pass over the EOTs. The one with most blocks waiting is next, so
    that there are never more than a few. (`itertools.tee` keeps 57 blocks and more, which is too much where all tokens
    are EOTs.)"""
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
            del parts[sidecar], waiting[sidecar]  # no block waits for it any more
        else:
            yield sidecar, part


def in_sequence(blocks: Iterable[bytes]) -> Iterator[SidecarPart]:
    """Yield the parts of a sidecar whose blocks follow one another."""
    offset = 0
    for block in blocks:
        yield SidecarPart(offset, block)
        offset += len(block)


def document_ends(file: FileFacts, eots: Iterable[Positions]) -> Iterator[Positions]:
    """Yield the positions at which documents end, with EOT after each. Tokens after the last EOT, of a document that
    continues in the next file or was cut by --max-tokens, count as one."""
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

    def parts(self, file: FileFacts, eots: Iterable[Positions]) -> Iterator[SidecarPart]:
        starts = eots
        if not file.eot_first:
            first = [np.zeros(1, np.int64)] if file.follows_eot else []
            # After the last EOT of a file the next file begins.
            after = (places[places + 1 < file.tokens] + 1 for places in eots)
            starts = itertools.chain(first, after)
        blocks = (block.astype(_OFFSETS).tobytes() for block in starts)
        return in_sequence(itertools.chain([npy_header(file.starts, _OFFSETS)], blocks))
