"""Split text files into documents at separators, which can be found from any offset in the file.

CRLF is read as LF: a line end in a separator also matches CRLF, and a CR in one matches a lone CR only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fineweb_shards.types import Positions

_LF, _CR = b"\n\r"


class Spans(NamedTuple):
    """Where documents begin and end."""

    starts: Positions
    ends: Positions


class Separator(ABC):
    """A way to separate documents. A boundary is the offset just after a separator."""

    lookback = 0  # how many bytes before an offset are needed to find the first boundary after it

    @abstractmethod
    def find_boundary(self, window: bytes) -> int | None:
        """Return the first boundary in the window after its `lookback` bytes; None if there is none."""

    @abstractmethod
    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        """Return where the documents are in a range that starts at a boundary, or in the middle of one.

        There is always one more than there are separators.
        """


class Line(Separator):
    """Separates at every line end: a line is a document."""

    def find_boundary(self, window: bytes) -> int | None:
        return window.find(b"\n") + 1 or None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        found = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(found == _LF)
        # An empty line has the line end of the one before, or the last byte of all, in front of it.
        with_cr = (found[ends - 1] == _CR) & (ends > 0) if len(ends) else np.empty(0, np.bool_)
        return Spans(np.append(0, ends + 1), np.append(ends - with_cr, len(data)))


class BlankLine(Separator):
    """Separates at one or more empty lines."""

    lookback = 3
    _BORDER = re.compile(rb"\n\r?\n")
    _BLANK = re.compile(rb"\r?\n(?:\r?\n)+")
    _LEADING = re.compile(rb"(?:\r?\n)+")

    def find_boundary(self, window: bytes) -> int | None:
        match = self._BORDER.search(window)
        return match.end() if match else None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        # A boundary may be in the middle of several empty lines: then the range begins with the rest of them.
        leading = None if starts_mid_document else self._LEADING.match(data)
        first = leading.end() if leading else 0
        return _between((match.span() for match in self._BLANK.finditer(data, first)), first, len(data))


class Literal(Separator):
    """Separates at every occurrence of a string."""

    def __init__(self, text: str) -> None:
        parts = text.replace("\r\n", "\n").encode().split(b"\n")
        # Only the next byte shows whether a CR at the end of the separator is a lone one.
        self._looks_ahead = parts[-1].endswith(b"\r")
        ahead = rb"(?!\n)" if self._looks_ahead else b""
        self._pattern = re.compile(rb"\r?\n".join(re.escape(part) for part in parts) + ahead)
        self._plain = parts[0] if len(parts) == 1 and not self._looks_ahead else b""
        self._longest = len(b"\r\n".join(parts))
        self.lookback = 2 * self._longest
        self.overlaps_itself = any(text.startswith(text[i:]) for i in range(1, len(text)))

    def find_boundary(self, window: bytes) -> int | None:
        """Return the boundary after the first occurrence that no other one overlaps from the left.

        Where `-----` is split at `--` depends on where the search begins. An occurrence that none overlaps
        from the left is found from every start.
        """
        reach = 0  # the end of the occurrences so far
        match = self._pattern.search(window)
        while match:
            if match.start() >= max(reach, self._longest):
                return match.end() if self._is_decided(match, window) else None
            reach = match.end()
            match = self._pattern.search(window, match.start() + 1)
        return None

    def last_boundary(self, data: bytes) -> int | None:
        """Return the last boundary in a range that is split from its start; None if there is none."""
        found = (match.end() for match in self._pattern.finditer(data) if self._is_decided(match, data))
        return max(found, default=None)

    def _is_decided(self, match: re.Match[bytes], window: bytes) -> bool:
        """Tell whether a match is certain: not if it depends on a next byte that is outside the window."""
        return not self._looks_ahead or match.end() < len(window)

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        found = self._find_plain(data) if self._plain else (m.span() for m in self._pattern.finditer(data))
        return _between(found, 0, len(data))

    def _find_plain(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield what the pattern would find, five times as fast, if the separator has no line end."""
        place = data.find(self._plain)
        while place >= 0:
            yield place, place + len(self._plain)
            place = data.find(self._plain, place + len(self._plain))


class WholeFile(Separator):
    """Separates nowhere: a file is one document."""

    def find_boundary(self, window: bytes) -> int | None:
        return None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        return _between((), 0, len(data))


def _between(separators: Iterable[tuple[int, int]], first: int, size: int) -> Spans:
    """Return what is between separators, from `first` up to the end of `size` bytes."""
    boundaries = np.array([(0, first), *separators, (size, size)], np.int64)
    return Spans(boundaries[:-1, 1], boundaries[1:, 0])


def make_separator(name: str) -> Separator:
    """Return the separator of this name: `line`, `blank` or `none`; any other string stands for itself."""
    named: dict[str, Callable[[], Separator]] = {"line": Line, "blank": BlankLine, "none": WholeFile}
    return named[name]() if name in named else Literal(name)
