"""Read the headers of a column chunk's pages, which say how much each of them unpacks to.

A page is decoded whole, so a cell of a gigabyte, which may take a few kilobytes in the file, takes several
gigabytes of memory. pyarrow has no limit for that, and does not show the headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

ReadAt = Callable[[int, int], bytes]  # the offset and size; fewer bytes at the end of the file

DICTIONARY_PAGE = 2
_HEADER_BYTES = 2**16  # more than any header, unless a writer puts whole texts into its statistics
_FIRST_BYTES = 256
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_KINDS_OF_HEADERS = (5, 7, 8)  # fields that hold a struct whose first field is the number of values


@dataclass(frozen=True, slots=True)
class Page:
    """The sizes of one page, without its header."""

    kind: int
    unpacked_bytes: int
    packed_bytes: int
    values: int


def read_pages(read_at: ReadAt, offset: int, end: int) -> Iterator[Page]:
    """Yield the pages of a column chunk, whose bytes are from `offset` to `end`, up to a damaged header: what
    is damaged is found when it is read."""
    while offset < end:
        for size in (_FIRST_BYTES, _HEADER_BYTES):
            try:
                page, header_bytes = _parse(read_at(offset, min(size, end - offset)))
                break
            except (IndexError, ValueError):
                continue
        else:
            return
        yield page
        offset += header_bytes + page.packed_bytes


def _parse(data: bytes) -> tuple[Page, int]:
    """Return a page and the length of its header. IndexError if there are too few bytes, ValueError if they
    are none of a header."""
    header = _Header(data)
    values = dict(header.read_fields())
    kind, unpacked, packed = values.get(1), values.get(2), values.get(3)
    if kind is None or unpacked is None or packed is None or min(kind, unpacked, packed) < 0:
        raise ValueError("no page header")
    counts = (values.get(number) for number in _KINDS_OF_HEADERS)
    return Page(kind, unpacked, packed, next(filter(None, counts), 0)), header.position


class _Header:
    """Thrift's compact protocol, as much of it as page headers have."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read_fields(self) -> Iterator[tuple[int, int | None]]:
        """Yield the fields of a struct: number and value, which is None if it is not a whole number; of a
        struct in it, that of its first field."""
        number = 0
        while (first := self._byte()) != _STOP:
            number = number + (first >> 4) if first >> 4 else self._integer()
            yield number, self._read_value(first & 15)

    def _read_value(self, kind: int) -> int | None:
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            self._skip(self._varint())
        elif kind == _STRUCT:
            return dict(self.read_fields()).get(1)
        elif kind in (_LIST, _SET):
            first = self._byte()
            count = first >> 4 if first >> 4 != 15 else self._varint()
            for _ in range(min(count, len(self._data))):
                self._read_value(_BYTE if first & 15 in (_TRUE, _FALSE) else first & 15)
        elif kind in (_BYTE, _DOUBLE):
            self._skip(1 if kind == _BYTE else 8)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("no page header")
        return None

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _skip(self, size: int) -> None:
        self.position += size
        if self.position > len(self._data):
            raise IndexError(self.position)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value, shift = value | (byte & 127) << shift, shift + 7
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
