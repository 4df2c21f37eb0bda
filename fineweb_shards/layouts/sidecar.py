"""Define what a sidecar is: a small file that goes with a file of tokens, mostly where its documents are.

It is a pure function of the finished file: of its length, and of the positions of its EOTs, which are given a
block at a time, so that memory is constant. Nothing here reads or writes a file: store/sidecars.py does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fineweb_shards.types import Dtype, Positions
from fineweb_shards.vocabulary import Vocabulary


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
    """Yield the parts of several sidecars, by one pass over the EOTs. The one for which most blocks wait goes
    on, so that there are never more than a few."""
    blocks = iter(eots)
    readers: dict[Sidecar, _BlockReader] = {}
    for sidecar in sidecars:
        readers[sidecar] = _BlockReader(blocks, readers.values())
    parts = {sidecar: sidecar.parts(file, reader) for sidecar, reader in readers.items()}
    while readers:
        sidecar = max(readers, key=lambda one: len(readers[one].waiting))
        part = next(parts[sidecar], None)
        if part is None:
            del readers[sidecar]  # no block waits for it any more
        else:
            yield sidecar, part


class _BlockReader(Iterator[Positions]):
    """One of several readers of the same blocks, and those that wait for it. (`itertools.tee` keeps 57 blocks
    and more, which is too much where all tokens are EOTs.)"""

    def __init__(self, blocks: Iterator[Positions], readers: Collection[_BlockReader]) -> None:
        self.waiting: deque[Positions] = deque()
        self._blocks = blocks
        self._readers = readers

    def __next__(self) -> Positions:
        if not self.waiting:
            block = next(self._blocks)
            for reader in self._readers:
                reader.waiting.append(block)
        return self.waiting.popleft()


def in_sequence(blocks: Iterable[bytes]) -> Iterator[SidecarPart]:
    """Yield the parts of a sidecar whose blocks follow one another."""
    offset = 0
    for block in blocks:
        yield SidecarPart(offset, block)
        offset += len(block)


def document_ends(file: FileFacts, eots: Iterable[Positions]) -> Iterator[Positions]:
    """Yield the positions at which documents end, with EOT after each. Tokens after the last EOT, of a
    document that continues in the next file or was cut by --max-tokens, count as one."""
    for places in eots:
        yield places + 1
    if not file.ends_with_eot:
        yield np.array([file.tokens], np.int64)
