"""What stands between the documents of a text, and how it is found from anywhere in the file.

CRLF is read as LF: a line end in a separator is found in Windows files too, and a CR in one is a lone CR.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable


class Separator(ABC):
    """What stands between documents."""

    lookback = 0  # bytes in front of a place that decide whether a border ends behind it

    @abstractmethod
    def find_border(self, window: bytes) -> int | None:
        """The offset just behind the first separator that ends after `lookback` bytes."""

    @abstractmethod
    def split(self, data: bytes, starts_mid_document: bool) -> list[bytes]:
        """The pieces of a range that begins at a border or (`starts_mid_document`) within a document."""


class Line(Separator):
    def find_border(self, window: bytes) -> int | None:
        return window.find(b"\n") + 1 or None

    def split(self, data: bytes, starts_mid_document: bool) -> list[bytes]:
        *lines, last = data.split(b"\n")
        return [*(line.removesuffix(b"\r") for line in lines), last]


class BlankLine(Separator):
    lookback = 3
    _BORDER = re.compile(rb"\n\r?\n")
    _BLANK = re.compile(rb"\r?\n(?:\r?\n)+")
    _LEADING = re.compile(rb"(?:\r?\n)+")

    def find_border(self, window: bytes) -> int | None:
        match = self._BORDER.search(window)
        return match.end() if match else None

    def split(self, data: bytes, starts_mid_document: bool) -> list[bytes]:
        # A border may lie in the middle of several empty lines, so the rest of them comes first here.
        if not starts_mid_document and (leading := self._LEADING.match(data)):
            data = data[leading.end() :]
        return self._BLANK.split(data)


class Literal(Separator):
    def __init__(self, text: str) -> None:
        parts = text.replace("\r\n", "\n").encode().split(b"\n")
        # Whether a CR at its end is a lone one is seen by the next byte.
        self._looks_ahead = parts[-1].endswith(b"\r")
        ahead = rb"(?!\n)" if self._looks_ahead else b""
        self._pattern = re.compile(rb"\r?\n".join(re.escape(part) for part in parts) + ahead)
        self._longest = len(b"\r\n".join(parts))
        self.lookback = 2 * self._longest
        self.overlaps_itself = any(text.startswith(text[i:]) for i in range(1, len(text)))

    def find_border(self, window: bytes) -> int | None:
        """The first occurrence that no other one overlaps from the left.

        In `-----` split at `--` it matters where one begins to count. An occurrence that none
        overlaps from the left is one for everybody.
        """
        reach = 0  # of the occurrences so far
        match = self._pattern.search(window)
        while match:
            if match.start() >= max(reach, self._longest):
                return match.end() if self._is_decided(match, window) else None
            reach = match.end()
            match = self._pattern.search(window, match.start() + 1)
        return None

    def last_border(self, data: bytes) -> int | None:
        """The offset behind the last separator of a range that is read from its start."""
        found = (match.end() for match in self._pattern.finditer(data) if self._is_decided(match, data))
        return max(found, default=None)

    def _is_decided(self, match: re.Match[bytes], window: bytes) -> bool:
        """Not where the byte behind it is in the next window only."""
        return not self._looks_ahead or match.end() < len(window)

    def split(self, data: bytes, starts_mid_document: bool) -> list[bytes]:
        return self._pattern.split(data)


class WholeFile(Separator):
    def find_border(self, window: bytes) -> int | None:
        return None

    def split(self, data: bytes, starts_mid_document: bool) -> list[bytes]:
        return [data]


def make_separator(name: str) -> Separator:
    """`line`, `blank`, `none`, or any other string for itself."""
    named: dict[str, Callable[[], Separator]] = {"line": Line, "blank": BlankLine, "none": WholeFile}
    return named[name]() if name in named else Literal(name)
