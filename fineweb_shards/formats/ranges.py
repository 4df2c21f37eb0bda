"""Divide a text file into ranges of bytes that end where documents end, or at a cut in a long document."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fineweb_shards.formats.views import ByteView, StreamView
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, LONGEST_UNCUT_BYTES, find_cut
from fineweb_shards.types import Positions
from fineweb_shards.vocabulary import CutRule

# How far to look for the end of a document that can't be cut. The encoder decides what is too long for it, by
# the length of the text. So this is more: the file may have twice as many bytes (CRLF is read as LF).
FARTHEST_BYTES = 4 * LONGEST_UNCUT_BYTES
_WINDOW_BYTES = 64 * 1024
_FAR_WINDOW_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of a file that becomes a batch."""

    start: int
    end: int
    starts_mid_document: bool = False
    ends_mid_document: bool = False
    starts_at_seam: bool = False
    ends_at_seam: bool = False
    problem: str | None = None  # why the range is left out
    is_uncut: bool = False  # too long to be encoded whole, and without a place to cut


def next_target(start: int, batch_bytes: int, distance: int = 0) -> int:
    """Return the position after which the batch from `start` on ends, as soon as it can: the next multiple of
    `batch_bytes`, more than `distance` bytes away. So the places to look for ends are known beforehand."""
    return ((start + distance) // batch_bytes + 1) * batch_bytes


def find_ranges(
    view: ByteView,
    separator: Separator,
    start: int,
    starts_mid_document: bool,
    batch_bytes: int,
    rule: CutRule | None,
) -> Iterator[Range]:
    """Yield ranges of about `batch_bytes` from `start` to the end of the text.

    If there is neither a separator nor a place to cut for too long, the last such place ends a document, and
    the rest of it is a range by itself, which can't be encoded: `is_uncut`. Where that happens depends on the
    text alone, and not on the batch size.
    """
    if rule != "gpt2":
        batch_bytes = min(batch_bytes, LONGEST_UNCUT_BYTES)  # so that no range passes over what is too long
    seam = False
    while view.read_at(start, 1):
        found = _find_end(view, separator, start, starts_mid_document, batch_bytes, rule)
        if isinstance(found, _Uncut):
            if starts_mid_document or found.start > start:
                yield Range(start, found.start, starts_mid_document)
            end = _skip_document(view, separator, found.searched)
            yield Range(found.start, end, is_uncut=True)
            start, starts_mid_document = end, False
            continue
        end, ends_mid_document, next_seam = found
        yield Range(start, end, starts_mid_document, ends_mid_document, seam, next_seam)
        start, starts_mid_document, seam = end, ends_mid_document, next_seam


class _End(NamedTuple):
    """The end of a range."""

    position: int
    ends_mid_document: bool = False
    seam: bool = False


class _Uncut(NamedTuple):
    """A part of a document that is too long to be encoded whole, and has no place to cut."""

    start: int
    searched: int  # up to here it has no end


def _find_end(
    view: ByteView,
    separator: Separator,
    start: int,
    starts_mid_document: bool,
    batch_bytes: int,
    rule: CutRule | None,
) -> _End | _Uncut:
    """Return the end of a range from `start`: at a document's end or, if that is far away, at a cut."""
    lookback = separator.lookback
    target = next_target(start, batch_bytes, max(lookback, CONTEXT_BYTES))
    cut_bytes = min(batch_bytes, _WINDOW_BYTES)
    offset = target
    # Look at least as far as a separator that begins before a cut can extend.
    while offset < target + max(batch_bytes, cut_bytes + lookback):
        window = view.read_at(offset - lookback, lookback + _WINDOW_BYTES)
        boundary = separator.find_boundary(window)
        if boundary is not None:
            return _End(offset - lookback + boundary)
        if len(window) < lookback + _WINDOW_BYTES:
            return _End(view.size_bytes)
        offset += _WINDOW_BYTES
    if isinstance(separator, Literal) and separator.overlaps_itself:
        # In a sequence such as `-----` split at `--`, the first occurrence decides where the others are.
        boundary = separator.last_boundary(view.read_at(start, offset - start))
        if boundary is not None and boundary >= target - start:
            return _End(start + boundary)
    # The document is long. No separator follows `target`, so a cut after it can't divide one.
    window = view.read_at(target - CONTEXT_BYTES, cut_bytes + 2 * CONTEXT_BYTES)
    cut = find_cut(window, CONTEXT_BYTES, CONTEXT_BYTES + cut_bytes, rule)
    if cut is not None:
        return _End(target - CONTEXT_BYTES + cut.position, True, cut.seam)
    assert rule != "gpt2", "there is always a place to cut in a kilobyte"
    before = view.read_at(start, target - start + CONTEXT_BYTES)
    last_cut = find_cut(before, 0, target - start, rule)
    last_document = int(separator.split(before, starts_mid_document).starts[-1])
    uncut = start + max(last_document, last_cut.position if last_cut else 0)
    return _find_far_end(view, separator, target, uncut, rule)


def _find_far_end(
    view: ByteView, separator: Separator, target: int, uncut: int, rule: CutRule | None
) -> _End | _Uncut:
    """Look after `target` for the end of a document, or a place to cut it, for as long as it may be uncut.

    It is uncut since `uncut`.
    """
    lookback = separator.lookback
    margin = lookback + CONTEXT_BYTES  # of a cut to the end of a window, so that it divides no separator
    offset, limit = target, uncut + FARTHEST_BYTES
    back, low = max(lookback, CONTEXT_BYTES), target
    while offset < limit:
        size = min(_FAR_WINDOW_BYTES, limit - offset)
        begin = offset - back
        window = view.read_at(begin, back + size)
        boundary = separator.find_boundary(window[back - lookback :])
        if boundary is not None:
            return _End(offset - lookback + boundary)
        if len(window) < back + size:
            return _End(view.size_bytes)
        cut = find_cut(window, low - begin, len(window) - margin, rule)
        if cut is not None:
            return _End(begin + cut.position, True)
        offset += size
        back, low = margin + CONTEXT_BYTES, offset - margin
    return _Uncut(uncut, limit)


def _skip_document(view: ByteView, separator: Separator, offset: int) -> int:
    """Return where the document ends that has no end up to `offset`, without keeping it in memory."""
    lookback = separator.lookback
    while True:
        window = view.read_at(offset - lookback, lookback + _FAR_WINDOW_BYTES)
        boundary = separator.find_boundary(window)
        if boundary is not None:
            return offset - lookback + boundary
        if len(window) < lookback + _FAR_WINDOW_BYTES:
            return view.size_bytes
        offset += _FAR_WINDOW_BYTES
        if isinstance(view, StreamView):
            view.forget(offset - lookback)


# Split text files into documents at separators, which can be found from any offset in the file.
#
# CRLF is read as LF: a line end in a separator also matches CRLF, and a CR in one matches a lone CR only.

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
