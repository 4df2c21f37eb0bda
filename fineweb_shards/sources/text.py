"""Plain text: byte ranges at document borders, or at safe cuts inside a document that is too long.

What people can rely on:

- A byte order mark at the start of a file is dropped; what is no text by its beginning is refused.
- CRLF is read as LF, as editors and Python's text mode do, in a separator as well. A lone CR stays.
- Invalid UTF-8 becomes U+FFFD and is counted.
- Of a damaged compressed file every document is read that ends in front of the damage.
- A document is what stands between two separators, otherwise unchanged; empty ones are none.
- `blank`: one or more empty lines (so no document begins with an empty line). `line`: a line end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineweb_shards.errors import BadFileError, ChangedError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import Format, InputFile, ReadSettings, decode_text
from fineweb_shards.sources.byte_view import ByteView, FileView, StreamView, open_view
from fineweb_shards.sources.separators import Literal, Separator, make_separator
from fineweb_shards.sources.text_check import SAMPLE_BYTES, check_is_text
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk

END_OF_TEXT = "<|endoftext|>"
_DETECT_BYTES = 2**20
_WINDOW_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Range:
    """A segment of the file, and how it begins and ends."""

    start: int
    end: int
    starts_mid_document: bool = False
    ends_mid_document: bool = False
    seam: bool = False
    problem: str | None = None  # why it is left out


class TextFormat(Format):
    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        self._view: tuple[str, FileView | StreamView] | None = None

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        view = open_view(file)
        try:
            check_is_text(file, view.read_at(0, SAMPLE_BYTES))
            name = self.find_separator(file, view)
            go_to(file, view, position)
            start = len(_BOM) if position == 0 and view.read_at(0, len(_BOM)) == _BOM else position
            separator, batch_bytes = make_separator(name), self.settings.batch_bytes
            ranges = find_ranges(view, separator, start, starts_mid_document, batch_bytes)
            with Scout(file, separator, batch_bytes) as scout:
                yield from batches_of(file, view, ranges, name, scout)
        finally:
            view.close()

    def share_before(self, file: InputFile, position: int) -> float | None:
        return None if file.by_value or not file.size_bytes else position / file.size_bytes

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        data = self.read_range(file, batch)
        pieces = make_separator(batch.separator).split(data, batch.starts_mid_document)
        if batch.broken_off:
            pieces.pop()
        documents, replaced, text_bytes = [], 0, 0
        for i, piece in enumerate(pieces):
            # The end of a document counts even where nothing is left of it; an empty one does not.
            if piece or (i == 0 and batch.starts_mid_document):
                piece = piece.replace(b"\r\n", b"\n")
                text, bad = decode_text(piece)
                documents.append(text)
                text_bytes += len(piece)
                replaced += bad
        start = Cursor(batch.file, batch.position, starts_mid_document=batch.starts_mid_document)
        yield TextChunk(
            documents,
            None if batch.seam else start,
            Cursor(batch.file, batch.end, starts_mid_document=batch.ends_mid_document),
            starts_mid_document=batch.starts_mid_document,
            ends_mid_document=batch.ends_mid_document,
            seam=batch.seam,
            counts=Counts(text_bytes, replaced_characters=replaced),
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


class Scout:
    """Runs ahead in a compressed file, where a document is longer than a batch: no piece of it may go to a
    worker before it is known that the document has an end, and is not cut off by a damage."""

    def __init__(self, file: InputFile, separator: Separator, batch_bytes: int) -> None:
        self._file = file
        self._separator = separator
        self._batch_bytes = batch_bytes
        self._view: StreamView | None = None
        self._whole_until = 0 if file.compression else None  # what is not compressed has no such damage

    def __enter__(self) -> Scout:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._view is not None:
            self._view.close()

    def find_damage(self, offset: int) -> StreamView | None:
        """Where the document that goes on at `offset` is cut off: a view that has come to its end."""
        if self._whole_until is None or offset < self._whole_until:
            return None
        view = self._view = self._view or StreamView(self._file)
        view.skip_to(offset)
        start = end = offset
        for part in find_ranges(view, self._separator, offset, True, self._batch_bytes):
            start, end = part.start, part.end
            if not part.ends_mid_document:
                break
            view.forget(end)
        if not view.is_cut_off_at(end):
            self._whole_until = end
            return None
        pieces = self._separator.split(view.read_at(start, end - start), True)
        return None if len(pieces) > 1 else view


def batches_of(
    file: InputFile,
    view: FileView | StreamView,
    ranges: Iterator[Range],
    separator: str,
    scout: Scout | None = None,
) -> Iterator[Batch]:
    """Ranges as batches: by reference where workers can read the file, else with their bytes."""
    for part in ranges:
        if part.problem is not None:
            yield Batch(file.index, part.start, part.end, 0, problem=part.problem)
            continue
        size = part.end - part.start
        damage = scout.find_damage(part.end) if scout and part.ends_mid_document else None
        payload, broken_off = None, False
        if isinstance(view, StreamView):
            payload = view.read_at(part.start, size)
            broken_off = damage is not None or view.is_cut_off_at(part.end)
            view.forget(part.end)
        yield Batch(
            file.index,
            part.start,
            damage.size_bytes if damage else part.end,
            size,
            starts_mid_document=part.starts_mid_document,
            ends_mid_document=part.ends_mid_document and damage is None,
            seam=part.seam,
            separator=separator,
            payload=payload,
            broken_off=broken_off,
        )
        if damage is not None and damage.failure is not None:
            raise damage.failure
    if isinstance(view, StreamView) and view.failure is not None:
        raise view.failure


def go_to(file: InputFile, view: FileView | StreamView, position: int) -> None:
    """Get ready to go on at `position`. It must be there: standard input may be another stream today."""
    if isinstance(view, StreamView):
        view.skip_to(position - 1)
    if position and not view.read_at(position - 1, 1):
        raise ChangedError(f"{file.path}: ends before byte {position:,}, where the last run had arrived.")


def find_ranges(
    view: ByteView, separator: Separator, start: int, starts_mid_document: bool, batch_bytes: int
) -> Iterator[Range]:
    """Ranges of about `batch_bytes` from `start` to the end of the text."""
    seam = False
    while view.read_at(start, 1):
        end, ends_mid_document, next_seam = _find_end(view, separator, start, batch_bytes)
        yield Range(start, end, starts_mid_document, ends_mid_document, seam)
        start, starts_mid_document, seam = end, ends_mid_document, next_seam


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
