"""Divide a text file into byte ranges that end at document ends, or at a cut in a long document.

`ByteView` reads text by offset, from a file with random access or from a stream. Batches of a file are references. A
stream can only be read front to back, so one process reads it, and its batches carry their bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import decode_text
from fineweb_shards.formats.random_sample import BEGINNING_BYTES, RandomSample
from fineweb_shards.storage.place import ByteSource, InputFile
from fineweb_shards.storage.streams import (
    READ_BYTES,
    DamagedStreamError,
    NotCompressedError,
    ReadAhead,
    TrailingGarbageError,
)
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, LONGEST_UNCUT_BYTES, find_cut
from fineweb_shards.types import Batch, Positions
from fineweb_shards.vocabulary import CutRule

# How far to look for the end of a document that can't be cut. The encoder decides by the length of the text what is too
# long. This is more, because the file may have twice as many bytes (CRLF is read as LF).
FARTHEST_BYTES = 4 * LONGEST_UNCUT_BYTES
_WINDOW_BYTES = 64 * 1024
_FAR_WINDOW_BYTES = 2**20
_MOST_WINDOWS_AHEAD = 8
_LARGEST_HEAD_BYTES = 2**20
_LARGEST_WINDOW_BYTES = 128 * 1024
_NEAR_BYTES = 256  # a window begins at most this far before its multiple of the batch size


class ByteView(ABC):
    """Bytes that can be read by offset."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The length; for a stream, final only once `read_at` has returned fewer bytes than requested."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end."""

    @abstractmethod
    def close(self) -> None: ...

    def forget(self, offset: int) -> None:  # a no-op where bytes can be read again
        """Drop the bytes before `offset`, which will not be read again."""

    def is_cut_off_at(self, offset: int) -> bool:
        """Return whether damage ends the text at `offset`, so that its last document is incomplete."""
        return False


class RangeView(ByteView):
    """A file with random access. To find document ends, the parent reads a small window at the end of every batch, near
    multiples of `batch_bytes`. Windows are prefetched, more and more of them; the beginning, which is read several
    times, is kept."""

    def __init__(self, source: ByteSource, batch_bytes: int) -> None:
        self._source = source
        self._batch_bytes = batch_bytes
        self._head = b""
        self._is_whole = False  # the head is all of the file
        self._ahead = 1

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    def read_at(self, offset: int, size: int) -> bytes:
        if offset == 0 and len(self._head) < size <= _LARGEST_HEAD_BYTES and not self._is_whole:
            self._head += self._source.read_at(len(self._head), size - len(self._head))
            self._is_whole = len(self._head) < size
        if self._is_whole or offset + size <= len(self._head):
            return self._head[offset : offset + size]
        step, last = self._batch_bytes, self.size_bytes
        if size <= _LARGEST_WINDOW_BYTES and offset > 0 and -offset % step <= _NEAR_BYTES:
            self._source.forget_before(offset)
            for start in range(offset, min(last, offset + self._ahead * step), step):
                self._source.prefetch(start, min(start + size, last))
            self._ahead = min(2 * self._ahead, _MOST_WINDOWS_AHEAD)
        return self._source.read_at(offset, size)

    def close(self) -> None:
        self._source.close()


class StreamView(ByteView):
    """A stream, read on demand. Keeps the bytes after the last `forget`."""

    def __init__(self, file: InputFile, stream: ReadAhead) -> None:
        self._file = file
        self._stream = stream
        self._start = 0  # offset of the first byte kept
        self._kept = bytearray()
        self._ended = False
        self.failure: BadFileError | None = None  # of a damaged stream, after its readable bytes
        self._is_cut_off = False

    @property
    def size_bytes(self) -> int:
        return self._start + len(self._kept)

    def read_at(self, offset: int, size: int) -> bytes:
        with self._view(offset, size) as view:
            return bytes(view)

    def share_at(self, offset: int, size: int) -> SharedBytes:
        """Like `read_at`, but return bytes that workers can read."""
        with self._view(offset, size) as view:
            return SharedBytes(view)

    @contextmanager
    def _view(self, offset: int, size: int) -> Iterator[memoryview]:
        """Read as far as needed, and lend a part of the kept bytes without a copy."""
        assert offset >= self._start, "these bytes have been forgotten"
        while not self._ended and self.size_bytes < offset + size:
            try:
                data = self._stream.read()
            except (DamagedStreamError, OSError) as error:
                self._fail(error)
                data = b""
            self._ended = not data
            self._kept += data
        begin = offset - self._start
        with memoryview(self._kept) as kept, kept[begin : begin + size] as part:
            yield part

    def _fail(self, error: DamagedStreamError | OSError) -> None:
        text, reason = f"{self.size_bytes:,} bytes of text", getattr(error, "strerror", None) or str(error)
        self._is_cut_off = not isinstance(error, TrailingGarbageError)
        if not self._is_cut_off:
            reason = f"after its {text} {reason}"
        elif not isinstance(error, NotCompressedError):
            reason = f"broken after {text}: {reason}"
        self.failure = BadFileError(f"{self._file.path}: {reason}.")

    def is_cut_off_at(self, offset: int) -> bool:
        return self._is_cut_off and offset == self.size_bytes

    def skip_to(self, offset: int) -> None:
        while self._start < offset and (data := self.read_at(self._start, READ_BYTES)):
            self.forget(min(self._start + len(data), offset))

    def forget(self, offset: int) -> None:
        del self._kept[: offset - self._start]
        self._start = offset

    def close(self) -> None:
        self._stream.close()


def with_bytes(view: ByteView, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of a file: references if workers can read it themselves, else with the bytes."""
    for batch in batches:
        if isinstance(view, StreamView) and batch.problem is None:
            payload = view.share_at(batch.position, batch.size_bytes)
            batch = replace(batch, payload=payload, broken_off=view.is_cut_off_at(batch.end))
            view.forget(batch.end)
        elif batch.problem is None and not batch.size_bytes:
            batch = replace(batch, payload=SharedBytes(b""))
        yield batch
    if isinstance(view, StreamView) and view.failure is not None:
        raise view.failure


def next_target(start: int, batch_bytes: int, distance: int = 0) -> int:
    """Return the position after which the batch from `start` on ends as soon as possible: the next multiple of
    `batch_bytes` more than `distance` bytes away. So the positions of the windows are known beforehand."""
    return ((start + distance) // batch_bytes + 1) * batch_bytes


class _End(NamedTuple):
    """The end of a range: a document's end, or a cut."""

    position: int
    is_cut: bool = False
    seam: bool = False
    searched: int | None = None  # up to here there is neither: the rest of the document can't be encoded


@dataclass(frozen=True)
class RangeFinder:
    """Divides a text into ranges of about `batch_bytes`; `rule` says where a long document may be cut. `report_uncut`
    receives where a part begins that can't be encoded, and returns the message."""

    file: int
    separator_name: str
    batch_bytes: int
    rule: CutRule | None
    report_uncut: Callable[[int], str]
    sample: RandomSample | None = None

    @cached_property
    def separator(self) -> Separator:
        return make_separator(self.separator_name)

    def find_ranges(self, view: ByteView, start: int, starts_mid_document: bool) -> Iterator[Batch]:
        """Yield ranges from `start` to the end of the text. After too long a stretch without a separator or a place to
        cut, the document ends at the last such place, and the rest becomes a range that can't be encoded. Where that
        happens depends only on the text, not on the batch size."""
        seam, is_kept = False, None
        while view.read_at(start, 1):
            found = self._find_end(view, start, starts_mid_document)
            if self.sample is not None:
                found, is_kept = self._decide(self.sample, view, start, found, is_kept if starts_mid_document else None)
            end = found.position
            if found.searched is None or starts_mid_document or end > start:
                yield Batch(
                    self.file, start, end, end - start, starts_mid_document, found.is_cut, seam, found.seam,
                    separator=self.separator_name, is_kept=is_kept,
                )  # fmt: skip
            if (searched := found.searched) is not None:
                while (after := self._end_in_window(view, searched, _FAR_WINDOW_BYTES)) is None:
                    searched += _FAR_WINDOW_BYTES
                    view.forget(searched - self.separator.lookback)
                yield Batch(self.file, end, after, 0, problem=self.report_uncut(end))
                end = after
            start, starts_mid_document, seam = end, found.is_cut, found.seam

    def _decide(
        self, sample: RandomSample, view: ByteView, start: int, found: _End, is_kept: bool | None
    ) -> tuple[_End, bool | None]:
        """Return the end of a range from `start`, and whether the sample keeps its last document, if that is cut.
        `is_kept` is the decision about a document that began earlier; the range ends with it, so that a run can resume
        there."""
        if is_kept is None and not found.is_cut and found.searched is None:
            return found, None
        data = view.read_at(start, found.position - start)
        starts = self.separator.split(data, is_kept is not None).starts.tolist()
        if is_kept is not None:
            return (_End(start + starts[1]) if len(starts) > 1 else found), is_kept
        if starts[-1] == len(data):
            return found, None
        # Twice as long because of CRLF, and perhaps with a part of a separator at its end.
        head = view.read_at(start + starts[-1], 2 * BEGINNING_BYTES + self.separator.lookback + _NEAR_BYTES)
        begin, end = (int(bounds[0]) for bounds in self.separator.split(head, False))
        text, _ = decode_text(head[begin:end].replace(b"\r\n", b"\n"))
        return found, sample.keeps(text.encode())

    def _end_in_window(self, view: ByteView, offset: int, window_bytes: int) -> int | None:
        """Return the first end of a document, or of the file, in a window from `offset` on."""
        lookback = self.separator.lookback
        window = view.read_at(offset - lookback, lookback + window_bytes)
        boundary = self.separator.find_boundary(window)
        if boundary is not None:
            return offset - lookback + boundary
        return view.size_bytes if len(window) < lookback + window_bytes else None

    def _find_end(self, view: ByteView, start: int, starts_mid_document: bool) -> _End:
        """Return the end of a range from `start`: a document's end or, if that is far away, a cut."""
        separator, batch_bytes, rule = self.separator, self.batch_bytes, self.rule
        if rule != "gpt2":
            batch_bytes = min(batch_bytes, LONGEST_UNCUT_BYTES)  # no range extends past a document that is too long
        target = next_target(start, batch_bytes, max(separator.lookback, CONTEXT_BYTES))
        cut_bytes = min(batch_bytes, _WINDOW_BYTES)
        offset = target
        # Look at least as far as a separator that begins before a cut may extend.
        while offset < target + max(batch_bytes, cut_bytes + separator.lookback):
            if (end := self._end_in_window(view, offset, _WINDOW_BYTES)) is not None:
                return _End(end)
            offset += _WINDOW_BYTES
        if isinstance(separator, Literal) and separator.overlaps_itself:
            # In a sequence such as `-----` split at `--`, the first occurrence determines the others.
            boundary = separator.last_boundary(view.read_at(start, offset - start))
            if boundary is not None and boundary >= target - start:
                return _End(start + boundary)
        # The document is long. No separator follows `target`, so a cut there can't divide one.
        window = view.read_at(target - CONTEXT_BYTES, cut_bytes + 2 * CONTEXT_BYTES)
        cut = find_cut(window, CONTEXT_BYTES, CONTEXT_BYTES + cut_bytes, rule)
        if cut is not None:
            return _End(target - CONTEXT_BYTES + cut.position, True, cut.seam)
        assert rule != "gpt2", "there is always a place to cut in a kilobyte"
        before = view.read_at(start, target - start + CONTEXT_BYTES)
        last_cut = find_cut(before, 0, target - start, rule)
        last_document = int(separator.split(before, starts_mid_document).starts[-1])
        return self._find_far_end(view, target, start + max(last_document, last_cut.position if last_cut else 0))

    def _find_far_end(self, view: ByteView, target: int, uncut: int) -> _End:
        """Look after `target` for a document's end or a place to cut, as far as allowed without one since `uncut`."""
        lookback = self.separator.lookback
        margin = lookback + CONTEXT_BYTES  # between a cut and the end of a window, so that it divides no separator
        offset, limit = target, uncut + FARTHEST_BYTES
        back, low = max(lookback, CONTEXT_BYTES), target
        while offset < limit:
            size = min(_FAR_WINDOW_BYTES, limit - offset)
            begin = offset - back
            window = view.read_at(begin, back + size)
            boundary = self.separator.find_boundary(window[back - lookback :])
            if boundary is not None:
                return _End(offset - lookback + boundary)
            if len(window) < back + size:
                return _End(view.size_bytes)
            cut = find_cut(window, low - begin, len(window) - margin, self.rule)
            if cut is not None:
                return _End(begin + cut.position, True)
            offset += size
            back, low = margin + CONTEXT_BYTES, offset - margin
        return _End(uncut, searched=limit)


# Separators can be found from any offset in a file. CRLF is read as LF: a line end in a separator also matches CRLF,
# and a CR matches only a lone CR.

_LF, _CR = b"\n\r"


class Spans(NamedTuple):
    starts: Positions  # of documents
    ends: Positions


class Separator:
    """A way to separate documents. A boundary is the offset just after a separator. The base class never separates: a
    file is one document."""

    lookback = 0  # how many bytes before an offset are needed to find the first boundary after it

    def find_boundary(self, window: bytes) -> int | None:
        """Return the first boundary in the window after its `lookback` bytes; None if there is none."""
        return None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        """Return the documents, one more than there are separators, in a range that starts at a boundary or inside a
        document."""
        return _between((), 0, len(data))


class Line(Separator):
    def find_boundary(self, window: bytes) -> int | None:
        return window.find(b"\n") + 1 or None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        found = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(found == _LF)
        # Before an empty line is the previous line end or, at index -1, the last byte of all.
        with_cr = (found[ends - 1] == _CR) & (ends > 0) if len(ends) else np.empty(0, np.bool_)
        return Spans(np.append(0, ends + 1), np.append(ends - with_cr, len(data)))


class BlankLine(Separator):
    lookback = 3
    _BORDER = re.compile(rb"\n\r?\n")
    _BLANK = re.compile(rb"\r?\n(?:\r?\n)+")
    _LEADING = re.compile(rb"(?:\r?\n)+")

    def find_boundary(self, window: bytes) -> int | None:
        match = self._BORDER.search(window)
        return match.end() if match else None

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        # A boundary may be between several empty lines: then the range begins with the rest of them.
        leading = None if starts_mid_document else self._LEADING.match(data)
        first = leading.end() if leading else 0
        return _between((match.span() for match in self._BLANK.finditer(data, first)), first, len(data))


class Literal(Separator):
    def __init__(self, text: str) -> None:
        parts = text.replace("\r\n", "\n").encode().split(b"\n")
        # Only the next byte shows whether a CR at the end of the separator is a lone CR.
        self._looks_ahead = parts[-1].endswith(b"\r")
        ahead = rb"(?!\n)" if self._looks_ahead else b""
        self._pattern = re.compile(rb"\r?\n".join(re.escape(part) for part in parts) + ahead)
        self._plain = parts[0] if len(parts) == 1 and not self._looks_ahead else b""
        self._longest = len(b"\r\n".join(parts))
        self.lookback = 2 * self._longest
        self.overlaps_itself = any(text.startswith(text[i:]) for i in range(1, len(text)))

    def find_boundary(self, window: bytes) -> int | None:
        # Where `-----` is split at `--` depends on where the search begins. An occurrence that overlaps no earlier one
        # is found from any start.
        reach = 0  # the end of the occurrences so far
        match = self._pattern.search(window)
        while match:
            if match.start() >= max(reach, self._longest):
                return match.end() if self._is_decided(match, window) else None
            reach = match.end()
            match = self._pattern.search(window, match.start() + 1)
        return None

    def last_boundary(self, data: bytes) -> int | None:
        """Return the last boundary in a range that is split from its start."""
        found = (match.end() for match in self._pattern.finditer(data) if self._is_decided(match, data))
        return max(found, default=None)

    def _is_decided(self, match: re.Match[bytes], window: bytes) -> bool:
        """Return whether a match is certain: it may depend on the next byte, outside the window."""
        return not self._looks_ahead or match.end() < len(window)

    def split(self, data: bytes, starts_mid_document: bool) -> Spans:
        found = self._find_plain(data) if self._plain else (m.span() for m in self._pattern.finditer(data))
        return _between(found, 0, len(data))

    def _find_plain(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the pattern's matches, five times as fast, if the separator has no line end."""
        place = data.find(self._plain)
        while place >= 0:
            yield place, place + len(self._plain)
            place = data.find(self._plain, place + len(self._plain))


def _between(separators: Iterable[tuple[int, int]], first: int, size: int) -> Spans:
    """Return the documents between separators, from `first` to the end of `size` bytes."""
    boundaries = np.array([(0, first), *separators, (size, size)], np.int64)
    return Spans(boundaries[:-1, 1], boundaries[1:, 0])


def make_separator(name: str) -> Separator:
    named: dict[str, Callable[[], Separator]] = {"line": Line, "blank": BlankLine, "none": Separator}
    return named[name]() if name in named else Literal(name)
