"""Hold many documents: their texts as valid UTF-8, in the buffers they were read into, or their token ids.

No `str` is made between a file and an engine that takes bytes. Users of `str` (tiktoken, fastokens, the sample,
messages) ask for one document at a time. Documents that their source provides as ids are `TokenLists`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextBuffer:
    """Texts in one buffer: text i is `data[starts[i]:ends[i]]`, which must be valid UTF-8."""

    data: bytes | memoryview
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Texts:
    """A sequence of texts: `str` by index and by iteration, bytes by `iter_bytes`."""

    __slots__ = ("_count", "buffers")

    def __init__(self, *buffers: TextBuffer) -> None:
        self.buffers = tuple(buffer for buffer in buffers if len(buffer.starts))
        self._count = sum(len(buffer.starts) for buffer in self.buffers)

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> Texts:
        """Convert strings to UTF-8; a lone surrogate becomes U+FFFD, as in tiktoken."""
        return cls.from_pieces([encode_utf8(string) for string in strings])

    @classmethod
    def from_pieces(cls, pieces: list[bytes]) -> Texts:
        """Join texts of valid UTF-8 into one buffer."""
        boundaries = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum([len(piece) for piece in pieces], out=boundaries[1:])
        return cls(TextBuffer(b"".join(pieces), boundaries[:-1], boundaries[1:]))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (data.decode() for data in self.iter_bytes())

    def __getitem__(self, i: int) -> str:
        return next(iter(self.only(i)))

    def __add__(self, other: Texts) -> Texts:
        return Texts(*self.buffers, *other.buffers)

    def only(self, i: int) -> Texts:
        for buffer in self.buffers:
            if 0 <= i < len(buffer.starts):
                return Texts(TextBuffer(buffer.data, buffer.starts[i : i + 1], buffer.ends[i : i + 1]))
            i -= len(buffer.starts)
        raise IndexError("no text has this number")

    def take(self, kept: NDArray[np.bool_]) -> Texts:
        """Return the texts selected by `kept`, without copying them."""
        ends = np.cumsum([len(buffer.starts) for buffer in self.buffers])
        pairs = zip(self.buffers, np.split(kept, ends[:-1]), strict=True) if self.buffers else ()
        return Texts(*(TextBuffer(buffer.data, buffer.starts[own], buffer.ends[own]) for buffer, own in pairs))

    def parts(self, part_bytes: int) -> Iterator[list[memoryview]]:
        """Yield views of the texts in lists of at least `part_bytes`; the last may be shorter."""
        held: list[memoryview] = []
        held_bytes = 0
        for view in self.iter_views():
            held.append(view)
            held_bytes += len(view)
            if held_bytes >= part_bytes:
                yield held
                held, held_bytes = [], 0
        if held:
            yield held

    def iter_views(self) -> Iterator[memoryview]:
        """Yield each text as a view of its buffer, without copying."""
        for buffer in self.buffers:
            data = memoryview(buffer.data)
            for start, end in zip(buffer.starts.tolist(), buffer.ends.tolist(), strict=True):
                yield data[start:end]

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield each text as bytes, copied one by one."""
        return map(bytes, self.iter_views())

    @property
    def size_bytes(self) -> int:
        return sum(int((buffer.ends - buffer.starts).sum()) for buffer in self.buffers)

    @property
    def longest_bytes(self) -> int:
        return max((int((buffer.ends - buffer.starts).max()) for buffer in self.buffers), default=0)


NO_TEXTS = Texts()


def replace_surrogates(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode_utf8(text: str) -> bytes:
    """Return the text as valid UTF-8: a lone surrogate becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text).encode()


class TokenLists:
    """A sequence of documents: all their ids, concatenated, and the length of each.

    The ids are checked, of the vocabulary's width, and contain no EOT. They stay in the parts in which they were read,
    so that adding more does not copy them. Only documents from files written by this program already have EOTs, at the
    positions `eots`.
    """

    __slots__ = ("_count", "_parts", "eots")

    def __init__(self, *parts: tuple[Ids, Lengths], eots: NDArray[np.int64] | None = None) -> None:
        self._parts = parts
        self.eots = eots
        self._count = sum(len(lengths) for _, lengths in parts)

    def __len__(self) -> int:
        return self._count

    def __add__(self, other: TokenLists) -> TokenLists:
        return TokenLists(*self._parts, *other._parts)

    def __iter__(self) -> Iterator[Ids]:
        for ids, lengths in self._parts:
            ends = np.cumsum(lengths).tolist()
            yield from (ids[start:end] for start, end in zip([0, *ends], ends, strict=False))

    def take(self, kept: NDArray[np.bool_]) -> TokenLists:
        parts, first = [], 0
        for ids, lengths in self._parts:
            own = kept[first : first + len(lengths)]
            parts.append((ids[np.repeat(own, lengths)], lengths[own]))
            first += len(lengths)
        return TokenLists(*parts)

    @property
    def ids(self) -> Ids:
        """The ids of all documents; there must be at least one document."""
        return np.concatenate([ids for ids, _ in self._parts])

    @property
    def lengths(self) -> Lengths:
        return np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in self._parts)])

    @property
    def size_bytes(self) -> int:
        return sum(ids.nbytes for ids, _ in self._parts)


_SHORT_TOKENS = 64  # up to this length copying by NumPy indices is faster than a Python slice per document
_INDEXED_AT_ONCE = 2**13  # of these documents, so that their indices stay in the processor's cache


def copy_ranges(source: Ids, begins: Lengths, lengths: Lengths, target: Ids, places: Lengths) -> None:
    """Copy ranges of an array to places in another array."""
    read, write = source.data, target.data
    long = lengths > _SHORT_TOKENS
    for begin, length, place in zip(begins[long].tolist(), lengths[long].tolist(), places[long].tolist(), strict=True):
        write[place : place + length] = read[begin : begin + length]
    if long.any():
        begins, lengths, places = begins[~long], lengths[~long], places[~long]
    for first in range(0, len(lengths), _INDEXED_AT_ONCE):
        own = slice(first, first + _INDEXED_AT_ONCE)
        ends = np.cumsum(lengths[own])
        starts, within = ends - lengths[own], np.arange(ends[-1])
        target[np.repeat(places[own] - starts, lengths[own]) + within] = source[
            np.repeat(begins[own] - starts, lengths[own]) + within
        ]
