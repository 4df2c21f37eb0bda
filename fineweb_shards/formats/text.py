"""Read plain text: batches are byte ranges that end at a document's end, or at a safe cut in a long document.

docs/input.md (Text) has the rules for separators, byte order marks, CRLF and invalid UTF-8. Of a damaged compressed
file, every document that ends before the damage is read. If the damage cuts off a document longer than a batch, the run
stops, because the document's beginning is already encoded.
"""

from __future__ import annotations

import codecs
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fineweb_shards.errors import BadFileError, ChangedError, InputError
from fineweb_shards.formats.base import Format, ReadSettings, decode_texts, is_utf8
from fineweb_shards.formats.ranges import (
    FARTHEST_BYTES,
    ByteView,
    RangeFinder,
    RangeView,
    StreamView,
    make_separator,
    with_bytes,
)
from fineweb_shards.formats.row_filter import RowFilter
from fineweb_shards.formats.text_samples import AUTO, SAMPLE_BYTES, check_is_text, find_separator
from fineweb_shards.storage.place import ByteSource, InputFile, Place
from fineweb_shards.storage.streams import ReadAhead, open_stream
from fineweb_shards.texts import TextBuffer, Texts
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk


class TextFormat(Format):
    def __init__(self, settings: ReadSettings, place: Place | None = None) -> None:
        super().__init__(settings, place)
        self.row_filter = RowFilter(settings.where) if settings.where else None
        self._sources: dict[str, ByteSource] = {}  # by path: files with batches being read or prefetched
        self._waiting = Counter[str]()  # by path: prefetched batches
        self._streams: dict[str, ReadAhead] = {}  # by path: files being read front to back
        self._lock = threading.Lock()  # one thread receives orders, another reads

    def expect(self, files: Sequence[InputFile]) -> None:
        """Begin to fetch or unpack the next files that are read front to back."""
        for file in files:
            if (file.compression or self.is_small(file)) and file.path not in self._streams:
                with contextlib.suppress(BadFileError):  # raised again when the file is read
                    self._streams[file.path] = open_stream(file, self.place)

    def open_view(self, file: InputFile) -> ByteView:
        if self.by_value(file):
            stream = self._streams.pop(file.path, None)
            return StreamView(file, stream or open_stream(file, self.place))
        return RangeView(self.place.open(file), self.settings.batch_bytes)

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        if not self.place.is_remote:
            return self.batches(file, position, False)
        smaller = replace(self.settings, batch_bytes=min(self.settings.batch_bytes, limit_bytes))
        return type(self)(smaller, self.place).batches(file, position, False)

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        with contextlib.closing(self.open_view(file)) as view:
            check_is_text(file, view.read_at(0, SAMPLE_BYTES))
            name = self.settings.separator
            name = find_separator(file, view) if name == AUTO else name
            go_to(file, view, position)
            has_mark = position == 0 and view.read_at(0, len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            start = len(codecs.BOM_UTF8) if has_mark else position
            rule, report_uncut = self.settings.vocabulary.cut_rule, partial(self._report_uncut, file)
            finder = RangeFinder(file.index, name, self.settings.batch_bytes, rule, report_uncut, self.settings.sample)
            for batch in with_bytes(view, finder.find_ranges(view, start, starts_mid_document)):
                if batch.broken_off and batch.starts_mid_document:
                    self._refuse_torn(file, view, batch)
                yield batch

    def _report_uncut(self, file: InputFile, start: int) -> str:
        error = BadFileError(
            f"{file.path}: from byte {start:,}, a document continues for over {FARTHEST_BYTES:,} bytes "
            f"without a place where {self.settings.vocabulary.name} allows a cut.",
            "Name the string that separates documents (--separator), split the document, or leave out the rest of it: "
            "--on-bad-file skip.",
        )
        return self.leave_out(error)

    def _refuse_torn(self, file: InputFile, view: ByteView, batch: Batch) -> None:
        """Raise an error if damage cuts off a document longer than a batch, whose beginning is already encoded."""
        documents = make_separator(batch.separator).split(self.read_range(file, batch), True)
        if len(documents.starts) == 1 and isinstance(view, StreamView) and view.failure is not None:
            self.leave_out(view.failure)
            raise InputError(
                f"{view.failure.message} It cuts off a long document whose beginning is already encoded.",
                "Repair the file or remove it from the input, and start over: another --out, or --fresh.",
            )

    def share_before(self, file: InputFile, position: int) -> float | None:
        is_unknown = file.is_pipe or file.compression is not None or not file.size_bytes
        return None if is_unknown else position / file.size_bytes

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        data = self.read_range(file, batch)
        starts, ends = make_separator(batch.separator).split(data, batch.starts_mid_document)
        wanted = starts < ends
        # Empty documents are dropped, but not the empty rest of one that began in an earlier batch.
        wanted[0] |= batch.starts_mid_document
        wanted[-1] &= not batch.broken_off
        # Usually the text is valid UTF-8 without CRLF, and needs no copy.
        texts = Texts(TextBuffer(data, starts[wanted], ends[wanted]))
        text_bytes, replaced = texts.size_bytes, 0
        has_crlf = b"\r" in data and b"\r\n" in data  # searching for one byte is 15 times as fast as for two
        if has_crlf or not is_utf8(data):
            pieces = [piece.replace(b"\r\n", b"\n") for piece in texts.iter_bytes()]
            texts, replaced = decode_texts(pieces)
            text_bytes = sum(map(len, pieces))
        start = Cursor(batch.file, batch.position, starts_mid_document=batch.starts_mid_document)
        yield TextChunk(
            texts,
            None if batch.starts_at_seam else start,
            Cursor(batch.file, batch.end, starts_mid_document=batch.ends_mid_document),
            starts_mid_document=batch.starts_mid_document,
            ends_mid_document=batch.ends_mid_document,
            starts_at_seam=batch.starts_at_seam,
            ends_at_seam=batch.ends_at_seam,
            counts=Counts(text_bytes, replaced_characters=replaced),
        )

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        if not self.place.is_remote:
            return
        with self._lock:
            self._waiting[file.path] += 1
            source = self._open(file, batch)
        source.prefetch(batch.position, batch.end)

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        self.prefetch(file, batch)  # reading has dropped the old bytes

    def _open(self, file: InputFile, batch: Batch) -> ByteSource:
        """Open a file. It stays open until another one is opened and none of its batches is prefetched."""
        if file.path not in self._sources:
            for path in [path for path in self._sources if not self._waiting[path]]:
                self._sources.pop(path).close()
            self._sources[file.path] = self.place.open(file, batch.address)
        return self._sources[file.path]

    def read_range(self, file: InputFile, batch: Batch) -> bytes:
        if batch.payload is not None:
            return batch.payload.read()
        with self._lock:
            source = self._open(file, batch)
        data = source.read_at(batch.position, batch.end - batch.position)
        if len(data) < batch.end - batch.position:
            raise BadFileError(f"{file.path}: the file has become shorter while it was read.")
        source.forget_before(batch.end)
        with self._lock:
            self._waiting[file.path] = max(0, self._waiting[file.path] - 1)
        return data

    def close(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()
        while self._sources:
            self._sources.popitem()[1].close()


def go_to(file: InputFile, view: ByteView, position: int) -> None:
    """Move the view to `position`; ChangedError if the text ends before it: standard input may be another stream."""
    if isinstance(view, StreamView):
        view.skip_to(position - 1)
    if position and not view.read_at(position - 1, 1):
        raise ChangedError(f"{file.path}: ends before byte {position:,}, which the last run had reached.")
