"""Find where the records and fields of delimited text (CSV, TSV) end, as RFC 4180 says.

A `"` may only stand at both ends of a field and, doubled, inside such a field. Then a byte is quoted exactly
if the number of `"` before it is odd, and NumPy finds records at a gigabyte a second, without a step for each
character. `find_stray_quote` finds the first `"` that stands elsewhere: after it counting would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.types import Positions

BLOCK_BYTES = 2**20
_QUOTE, _LINE_END, _RETURN = b'"\n\r'


@dataclass(frozen=True, slots=True)
class Block:
    """Some bytes of a file, and where their quotes are."""

    data: bytes
    quotes: Positions
    starts_quoted: bool

    @classmethod
    def of(cls, data: bytes, starts_quoted: bool = False) -> Block:
        return cls(data, np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE), starts_quoted)

    @property
    def ends_quoted(self) -> bool:
        return (len(self.quotes) + self.starts_quoted) % 2 == 1

    def are_quoted(self, places: Positions) -> NDArray[np.bool_]:
        """Tell for each place whether it is between quotes."""
        quoted: NDArray[np.bool_] = (np.searchsorted(self.quotes, places) + self.starts_quoted) % 2 == 1
        return quoted

    def first_end(self, offset: int, limit: int) -> int | None:
        """Return the position after the first line end from `offset` to `limit` that ends a record."""
        place = self.data.find(b"\n", offset, limit)
        while place >= 0:
            before = int(np.searchsorted(self.quotes, place))
            if (before + self.starts_quoted) % 2 == 0:
                return place + 1
            if before == len(self.quotes):
                return None
            place = self.data.find(b"\n", int(self.quotes[before]), limit)
        return None

    def last_end(self, limit: int) -> int | None:
        """Return the position after the last line end before `limit` that ends a record."""
        place = self.data.rfind(b"\n", 0, limit)
        while place >= 0:
            before = int(np.searchsorted(self.quotes, place))
            if (before + self.starts_quoted) % 2 == 0:
                return place + 1
            if before == 0:
                return None
            place = self.data.rfind(b"\n", 0, int(self.quotes[before - 1]))
        return None

    def find_stray_quote(self, before: bytes, after: bytes, delimiter: bytes) -> int | None:
        """Return the place of the first quote that is neither at an end of a field nor doubled. `before` and
        `after` are the bytes around the block: a line end at the beginning and the end of the file."""
        framed = np.frombuffer(before + self.data + after, np.uint8)
        opening = (np.arange(len(self.quotes)) + self.starts_quoted) % 2 == 0
        sound = np.where(
            opening,
            np.isin(framed[self.quotes], (delimiter[0], _LINE_END, _QUOTE)),
            np.isin(framed[self.quotes + 2], (delimiter[0], _LINE_END, _RETURN, _QUOTE)),
        )
        return None if sound.all() else int(self.quotes[np.argmin(sound)])


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records, and where their fields are. Empty lines are no records."""

    block: Block
    starts: Positions  # of each record
    fields: Positions  # the number of fields of each
    has_lone_return: NDArray[np.bool_]  # outside quotes, where programs disagree on whether it ends a record
    _ends: Positions  # of all fields, one after the other
    _first: Positions  # the number of each record's first field

    def take(self, records: NDArray[np.bool_], field: int) -> list[bytes]:
        """Return one field of some of the records, which must have it, without quotes."""
        data, numbers = self.block.data, self._first[records] + field
        starts = self.starts[records] if field == 0 else self._ends[numbers - 1] + 1
        ends = _without_return(data, self._ends[numbers])
        quotes = np.searchsorted(self.block.quotes, ends) - np.searchsorted(self.block.quotes, starts)
        starts, ends, has_doubled = starts + (quotes > 0), ends - (quotes > 0), quotes > 2
        places = zip(starts.tolist(), ends.tolist(), has_doubled.tolist(), strict=True)
        return [data[i:j].replace(b'""', b'"') if doubled else data[i:j] for i, j, doubled in places]


def split_records(block: Block, delimiter: bytes) -> Records:
    """Find the records of a block that begins with one, and their fields."""
    data = block.data
    ends = _find_outside(block, (delimiter[0], _LINE_END))
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    bytes_there = np.frombuffer(data + b"\n", np.uint8)[ends]
    last = np.flatnonzero(bytes_there == _LINE_END)  # the number of each record's last field
    first = np.concatenate(([0], last[:-1] + 1))
    starts = np.concatenate(([0], ends[last[:-1]] + 1))
    record_ends = ends[last]
    lone = _find_outside(block, (_RETURN,)) if b"\r" in data else np.empty(0, np.int64)
    lone = lone[np.frombuffer(data + b"\n", np.uint8)[lone + 1] != _LINE_END]
    has_lone_return = np.zeros(len(last), np.bool_)
    has_lone_return[np.searchsorted(record_ends, lone)] = True
    wanted = starts < _without_return(data, record_ends)
    return Records(
        block, starts[wanted], (last - first + 1)[wanted], has_lone_return[wanted], ends, first[wanted]
    )


def _find_outside(block: Block, wanted: tuple[int, ...]) -> Positions:
    """Return the places of some bytes that are not quoted. A piece at a time, because a long text in quotes
    may have many of them."""
    data = np.frombuffer(block.data, np.uint8)
    found = []
    for offset in range(0, len(data), BLOCK_BYTES):
        piece = data[offset : offset + BLOCK_BYTES]
        places = np.flatnonzero(reduce(np.logical_or, [piece == byte for byte in wanted])) + offset
        found.append(places[~block.are_quoted(places)])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _without_return(data: bytes, ends: Positions) -> Positions:
    """Move the ends of fields that are in front of CRLF before the CR."""
    if b"\r" not in data:
        return ends
    framed = np.frombuffer(b"\n" + data, np.uint8)
    return np.where(framed[ends] == _RETURN, ends - 1, ends)


def slices_of_records(data: bytes) -> Iterator[tuple[int, Block]]:
    """Cut records into blocks of about a megabyte, each with its offset, so that few places are held."""
    offset = 0
    while offset < len(data):
        size = BLOCK_BYTES
        while True:
            block = Block.of(data[offset : offset + size])
            end = len(block.data) if offset + size >= len(data) else block.last_end(len(block.data))
            if end is not None:
                break
            size *= 2
        yield offset, Block(block.data[:end], block.quotes[: np.searchsorted(block.quotes, end)], False)
        offset += end
