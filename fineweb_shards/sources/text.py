"""Plain text: byte ranges at document borders, or at safe cuts inside a document that is too long.

What people can rely on:

- A byte order mark at the start of a file is dropped; UTF-16 is refused by name.
- CRLF is read as LF, as editors and Python's text mode do. A lone CR stays.
- Invalid UTF-8 becomes U+FFFD and is counted.
- A document is what stands between two separators, otherwise unchanged; empty ones are none.
- `blank`: one or more empty lines (so no document begins with an empty line). `line`: a line end.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fineweb_shards.errors import BadFileError, ChangedError
from fineweb_shards.sources.base import Format, InputFile, ReadSettings, decode_text
from fineweb_shards.sources.stream import ByteView, FileView, StreamView, open_view
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk

END_OF_TEXT = "<|endoftext|>"
_DETECT_BYTES = 2**20
_WINDOW_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Separator(ABC):
    """What stands between documents."""

    lookback = 0  # bytes in front of a place that decide whether a border ends behind it

    @abstractmethod
    def find_border(self, window: bytes) -> int | None:
        """The offset just behind the first separator that ends after `lookback` bytes."""

    @abstractmethod
    def split(self, data: bytes, inside: bool) -> list[bytes]:
        """The pieces of a range that begins at a border or (`inside`) within a document."""


class Line(Separator):
    def find_border(self, window: bytes) -> int | None:
        return window.find(b"\n") + 1 or None

    def split(self, data: bytes, inside: bool) -> list[bytes]:
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

    def split(self, data: bytes, inside: bool) -> list[bytes]:
        # A border may lie in the middle of several empty lines, so the rest of them comes first here.
        if not inside and (leading := self._LEADING.match(data)):
            data = data[leading.end() :]
        return self._BLANK.split(data)


class Literal(Separator):
    def __init__(self, text: str) -> None:
        # A line end in the separator is found in Windows files too: CRLF is read as LF.
        parts = text.replace("\r\n", "\n").encode().split(b"\n")
        self._pattern = re.compile(rb"\r?\n".join(re.escape(part) for part in parts))
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
                return match.end()
            reach = match.end()
            match = self._pattern.search(window, match.start() + 1)
        return None

    def last_border(self, data: bytes) -> int | None:
        """The offset behind the last separator of a range that is read from its start."""
        return max((match.end() for match in self._pattern.finditer(data)), default=None)

    def split(self, data: bytes, inside: bool) -> list[bytes]:
        return self._pattern.split(data)


class WholeFile(Separator):
    def find_border(self, window: bytes) -> int | None:
        return None

    def split(self, data: bytes, inside: bool) -> list[bytes]:
        return [data]


def make_separator(name: str) -> Separator:
    """`line`, `blank`, `none`, or any other string for itself."""
    named: dict[str, Callable[[], Separator]] = {"line": Line, "blank": BlankLine, "none": WholeFile}
    return named[name]() if name in named else Literal(name)


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of the file, and how it begins and ends."""

    start: int
    end: int
    inside: bool
    ends_inside: bool
    seam: bool


class TextFormat(Format):
    def __init__(self, settings: ReadSettings) -> None:
        super().__init__(settings)
        self._view: tuple[str, FileView | StreamView] | None = None

    def batches(self, file: InputFile, position: int, inside: bool) -> Iterator[Batch]:
        view = open_view(file)
        try:
            name = self.find_separator(file, view)
            go_to(file, view, position)
            start = _text_start(file, view) if position == 0 else position
            ranges = find_ranges(view, make_separator(name), start, inside, self.settings.batch_bytes)
            yield from batches_of(file, view, ranges, name)
        finally:
            view.close()

    def share_before(self, file: InputFile, position: int) -> float | None:
        return None if file.by_value or not file.size_bytes else position / file.size_bytes

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        data = self.read_range(file, batch)
        pieces = make_separator(batch.separator).split(data, batch.inside)
        if batch.broken_off:
            pieces.pop()
        documents, replaced = [], 0
        for i, piece in enumerate(pieces):
            # The end of a document counts even where nothing is left of it; an empty one does not.
            if piece or (i == 0 and batch.inside):
                text, bad = decode_text(piece.replace(b"\r\n", b"\n"))
                documents.append(text)
                replaced += bad
        yield TextChunk(
            documents,
            None if batch.seam else Cursor(batch.file, batch.position, inside=batch.inside),
            Cursor(batch.file, batch.end, inside=batch.ends_inside),
            inside=batch.inside,
            unfinished=batch.ends_inside,
            seam=batch.seam,
            counts=Counts(len(data), replaced_characters=replaced),
        )

    def read_range(self, file: InputFile, batch: Batch) -> bytes:
        """The bytes of a batch, from the file (kept open) or from the batch itself."""
        if batch.payload is not None:
            return batch.payload
        if self._view is None or self._view[0] != file.path:
            self.close()
            self._view = (file.path, open_view(file))
        data = self._view[1].read_at(batch.position, batch.end - batch.position)
        if len(data) < batch.end - batch.position:
            raise BadFileError(f"{file.path}: the file has become shorter while it was read.")
        return data

    def close(self) -> None:
        if self._view is not None:
            self._view[1].close()
            self._view = None

    def find_separator(self, file: InputFile, view: ByteView) -> str:
        """The configured separator, or for `auto` what the first MiB shows."""
        if self.settings.separator != "auto":
            return self.settings.separator
        return END_OF_TEXT if END_OF_TEXT.encode() in view.read_at(0, _DETECT_BYTES) else "blank"


def batches_of(
    file: InputFile, view: FileView | StreamView, ranges: Iterator[Range], separator: str
) -> Iterator[Batch]:
    """Ranges as batches: by reference where workers can read the file, else with their bytes."""
    for part in ranges:
        size = part.end - part.start
        payload, broken_off = None, False
        if isinstance(view, StreamView):
            payload = view.read_at(part.start, size)
            broken_off = view.failure is not None and part.end == view.size_bytes
            view.forget(part.end)
        yield Batch(
            file.index,
            part.start,
            part.end,
            size,
            inside=part.inside,
            ends_inside=part.ends_inside,
            seam=part.seam,
            separator=separator,
            payload=payload,
            broken_off=broken_off,
        )
    if isinstance(view, StreamView) and view.failure is not None:
        raise view.failure


def go_to(file: InputFile, view: FileView | StreamView, position: int) -> None:
    """Get ready to go on at `position`. It must be there: standard input may be another stream today."""
    if isinstance(view, StreamView):
        view.skip_to(position - 1)
    if position and not view.read_at(position - 1, 1):
        raise ChangedError(f"{file.path}: ends before byte {position:,}, where the last run had arrived.")


def find_ranges(
    view: ByteView, separator: Separator, start: int, inside: bool, batch_bytes: int
) -> Iterator[Range]:
    """Ranges of about `batch_bytes` from `start` to the end of the text."""
    seam = False
    while view.read_at(start, 1):
        end, ends_inside, next_seam = _find_end(view, separator, start, batch_bytes)
        yield Range(start, end, inside, ends_inside, seam)
        start, inside, seam = end, ends_inside, next_seam


def _find_end(view: ByteView, separator: Separator, start: int, batch_bytes: int) -> tuple[int, bool, bool]:
    """Where a range from `start` ends; whether that is inside a document; whether at a seam."""
    target = start + batch_bytes
    lookback = separator.lookback
    cut_bytes = min(batch_bytes, _WINDOW_BYTES)
    offset = target
    # At least as far as a separator can reach that begins in front of a cut.
    while offset < target + max(batch_bytes, cut_bytes + lookback):
        window = view.read_at(offset - lookback, lookback + _WINDOW_BYTES)
        border = separator.find_border(window)
        if border is not None:
            return offset - lookback + border, False, False
        if len(window) < lookback + _WINDOW_BYTES:
            return view.size_bytes, False, False
        offset += _WINDOW_BYTES
    if isinstance(separator, Literal) and separator.overlaps_itself:
        # In a run such as `-----` for `--` the first one decides where the others are.
        border = separator.last_border(view.read_at(start, offset - start))
        if border is not None and border >= batch_bytes:
            return start + border, False, False
    # A long document. There is no separator behind `target`, so nowhere there can one be cut in two.
    window = view.read_at(target - CONTEXT_BYTES, cut_bytes + 2 * CONTEXT_BYTES)
    cut = find_cut(window, CONTEXT_BYTES, CONTEXT_BYTES + cut_bytes)
    assert cut is not None, "there is always a place to cut in a kilobyte"
    return target - CONTEXT_BYTES + cut.position, True, cut.seam


def _text_start(file: InputFile, view: ByteView) -> int:
    """Behind the byte order mark, if there is one."""
    head = view.read_at(0, len(_BOM))
    if head.startswith(_UTF16):
        raise BadFileError(
            f"{file.path}: this text is UTF-16.",
            f"Convert it first: iconv -f UTF-16 -t UTF-8 {file.path} > converted.txt",
        )
    return len(_BOM) if head == _BOM else 0
