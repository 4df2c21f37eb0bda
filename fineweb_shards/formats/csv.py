"""Read CSV and TSV: batches are byte ranges that end at record ends; the first record names the columns.

The parent counts quotes to find where records end (`quotes.py`), so it reads the whole file once; the
workers split their ranges. Quotes are those of RFC 4180, in TSV as well. Where a quote breaks the rule,
nobody knows where the record ends: with `--on-bad-file skip` everything from its beginning to the end of the
line with that quote is left out, and a record begins after it. That depends on the file alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import ReadSettings, decode_text
from fineweb_shards.formats.jsonl import skip_line
from fineweb_shards.formats.quotes import BLOCK_BYTES, Block, Records, slices_of_records, split_records
from fineweb_shards.formats.ranges import Range, next_target
from fineweb_shards.formats.row_filter import load_filter
from fineweb_shards.formats.rows import append_chunk
from fineweb_shards.formats.text import TextFormat, batches_of, go_to
from fineweb_shards.formats.text_check import SAMPLE_BYTES, check_is_text, decode_texts, is_utf8
from fineweb_shards.formats.views import ByteView, StreamView
from fineweb_shards.formats.where import IN_WORDS, Kind
from fineweb_shards.storage.place import InputFile, Place
from fineweb_shards.texts import NO_TEXTS, Texts
from fineweb_shards.types import Batch, Counts, Cursor, Origin, TextChunk

# As for JSON lines. A quote that is never closed must not gather gigabytes.
MAX_RECORD_BYTES = 64 * 2**20
_BOM = b"\xef\xbb\xbf"
_UNREADABLE = object()  # stands for a field that is no value of the kind that it should be


class CsvFormat(TextFormat):
    """Documents that are a field of each record."""

    delimiter = b","

    def __init__(self, settings: ReadSettings, place: Place | None = None) -> None:
        super().__init__(settings, place)
        self.row_filter = load_filter(settings.where)

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        view = self.open_view(file)
        try:
            head = view.read_at(0, SAMPLE_BYTES)
            check_is_text(file, head)
            columns, header_bytes = self._read_header(file, head)
            go_to(file, view, position)
            ranges = self._ranges(file, view, position or header_bytes)
            for batch in batches_of(file, view, ranges, ""):
                yield replace(batch, columns=columns)
        finally:
            view.close()

    def _read_header(self, file: InputFile, head: bytes) -> tuple[tuple[str, ...], int]:
        """Return the names of the columns, and where the records begin; no names if the file is empty."""
        body = head.removeprefix(_BOM).lstrip(b"\r\n")
        start = len(head) - len(body)
        if not body and len(head) < SAMPLE_BYTES:
            return (), start
        block = Block.of(body)
        end = block.first_end(0, len(body))
        if end is None and len(head) < SAMPLE_BYTES and not block.ends_quoted:
            end = len(body)
        if end is None or Block.of(body[:end]).find_stray_quote(b"\n", b"\n", self.delimiter) is not None:
            raise BadFileError(
                f"{file.path}: its first {len(head):,} bytes hold no line with the names of the columns."
            )
        records = split_records(Block.of(body[:end]), self.delimiter)
        cells = [records.take(np.ones(1, np.bool_), field)[0] for field in range(int(records.fields[0]))]
        names = tuple(decode_text(cell)[0] for cell in cells)
        self._check_columns(file, names)
        return names, start + end

    def _check_columns(self, file: InputFile, names: tuple[str, ...]) -> None:
        """Refuse a header that does not name the column with the text, and those of --where, once."""
        hint = "Name the column with the text: --text-column. The first line must hold the names."
        self._check_column(file, names, self.settings.text_column, hint)
        for wanted in self.settings.where.columns if self.settings.where else ():
            self._check_column(file, names, wanted, "Check the names in --where.")

    def _check_column(self, file: InputFile, names: tuple[str, ...], wanted: str, hint: str) -> None:
        count = names.count(wanted)
        if count == 1:
            return
        found = f"{count} columns are called {wanted!r}" if count else f"there is no column {wanted!r}"
        if len(names) == 1:  # perhaps because they are separated by something else
            hint = _separation_hint(file, names[0], wanted) or (
                f"Columns are separated by commas (--format csv) or tabs (--format tsv). {hint}"
            )
        raise BadFileError(f"{file.path}: {found}; the columns are: {', '.join(names)[:200]}.", hint)

    def _ranges(self, file: InputFile, view: ByteView, start: int) -> Iterator[Range]:
        """Yield ranges of whole records, about `batch_bytes` each; what is no record is one by itself."""
        record = offset = start  # `record`: the beginning of the one that is not over at `offset`
        quoted = False
        while data := view.read_at(offset, BLOCK_BYTES):
            block = Block.of(data, quoted)
            before = view.read_at(offset - 1, 1) if offset > record else b"\n"
            after = view.read_at(offset + len(data), 1) or b"\n"
            stray = block.find_stray_quote(before, after, self.delimiter)
            for end in self._record_ends(block, offset, len(data) if stray is None else stray):
                if end - record > MAX_RECORD_BYTES:
                    if record > start:
                        yield Range(start, record)
                    yield Range(record, end, problem=self.leave_out(_too_long(file, record)))
                    start = end
                elif end >= next_target(start, self.settings.batch_bytes):
                    yield Range(start, end)
                    start = end
                record = end
            offset, quoted = offset + len(data), block.ends_quoted
            if stray is None and offset - record <= MAX_RECORD_BYTES:
                continue
            if record > start:
                yield Range(start, record)
                start = record
            if stray is not None:
                offset, quoted = skip_line(view, offset - len(data) + stray), False
                if not _is_cut_off(view, offset):
                    yield Range(record, offset, problem=self.leave_out(_stray(file, record)))
                start = record = offset
            else:
                self.leave_out(_too_long(file, record))  # stop now, or find out where it ends
                if isinstance(view, StreamView):
                    view.forget(offset - 1)
        yield from self._last_ranges(file, view, start, record, offset, quoted)

    def _record_ends(self, block: Block, offset: int, limit: int) -> Iterator[int]:
        """Yield, in order, the ends of the first and the last record that end in a block, before its place
        `limit`, and of those between them that may end a batch. `offset` is the block's place in the file."""
        last = block.last_end(limit)
        if last is None:
            return
        batch_bytes = self.settings.batch_bytes
        targets = range(next_target(offset, batch_bytes), offset + last, batch_bytes)
        for target in (offset + 1, *targets):
            end = block.first_end(target - offset - 1, limit)
            assert end is not None, "a record ends after it"
            yield offset + end
        yield offset + last

    def _last_ranges(
        self, file: InputFile, view: ByteView, start: int, record: int, end: int, quoted: bool
    ) -> Iterator[Range]:
        """Yield what is left at the end of the file, where the last record may have no line end."""
        problem = None
        if quoted:
            problem = BadFileError(f'{file.path}: the record at byte {record:,} has a " that is not closed.')
        elif end - record > MAX_RECORD_BYTES:
            problem = _too_long(file, record)
        whole = record if problem or _is_cut_off(view, end) else end
        if whole > start:
            yield Range(start, whole)
        if problem and not _is_cut_off(view, end):
            yield Range(record, end, problem=self.leave_out(problem))

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        chunk = TextChunk(NO_TEXTS, Cursor(batch.file, batch.position), Cursor(batch.file, batch.end))
        for offset, block in slices_of_records(self.read_range(file, batch)):
            part, failure = self._read_records(file, batch.columns, block, batch.position + offset)
            chunk = append_chunk(chunk, part)
            if failure is not None:  # only now, so that the documents before it are kept
                yield replace(chunk, end=part.end)
                raise failure
        yield chunk

    def _read_records(
        self, file: InputFile, columns: tuple[str, ...], block: Block, offset: int
    ) -> tuple[TextChunk, BadFileError | None]:
        """Read the documents of a block, at byte `offset` of the file, up to a failure that ends the run."""
        records = split_records(block, self.delimiter)
        sound = (records.fields == len(columns)) & ~records.has_lone_return
        values, wrong = self._read_values(columns, records, sound)
        problems: list[str] = []
        failure, end = None, None
        for number in np.flatnonzero(~sound).tolist():
            error = _bad_record(file, records, number, offset, len(columns), wrong.get(number))
            if not self.settings.skip_bad:
                sound[number:] = False
                failure, end = error, Cursor(file.index, offset + int(records.starts[number]))
                break
            problems.append(self.leave_out(error))
        left_out = Counts()
        if self.row_filter is not None:
            numbers = np.flatnonzero(sound).tolist()
            passes, left_out = self.row_filter.select_values([values[number] for number in numbers])
            sound[numbers] = passes
        cells = records.take(sound, columns.index(self.settings.text_column))
        texts, replaced = (Texts.from_pieces(cells), 0) if is_utf8(block.data) else decode_texts(cells)
        ids = None
        if columns.count("id") == 1:
            ids = [decode_text(cell)[0] for cell in records.take(sound, columns.index("id"))]
        counts = Counts(sum(map(len, cells)), replaced_characters=replaced, bad_parts=len(problems))
        origins = (Origin(0, len(texts), ids=ids),)
        chunk = TextChunk(
            texts, None, end, counts=counts + left_out, problems=tuple(problems), origins=origins
        )
        return chunk, failure

    def _read_values(
        self, columns: tuple[str, ...], records: Records, sound: NDArray[np.bool_]
    ) -> tuple[dict[int, tuple[Any, ...]], dict[int, str]]:
        """Return the values that --where needs by the number of their record, and what is wrong with those of
        which it can't be decided; these are no longer `sound`."""
        if self.settings.where is None:
            return {}, {}
        numbers = np.flatnonzero(sound).tolist()
        read: list[list[Any]] = []
        wrong: dict[int, str] = {}
        for name, kind in self.settings.where.kinds:
            cells = records.take(sound, columns.index(name))
            read.append([_parse_field(cell, kind) for cell in cells])
            for number, value, cell in zip(numbers, read[-1], cells, strict=True):
                if value is _UNREADABLE:
                    found = decode_text(cell[:40])[0]
                    wrong[number] = f"has {found!r} as {name!r}, which --where compares with {IN_WORDS[kind]}"
        sound[list(wrong)] = False
        return dict(zip(numbers, zip(*read, strict=True), strict=True)), wrong


class TsvFormat(CsvFormat):
    """The same with tabs."""

    delimiter = b"\t"


def _separation_hint(file: InputFile, header: str, wanted: str) -> str | None:
    """Return what to do about a header in which another character than expected divides the columns; None if
    none does."""
    named = {",": "Commas", "\t": "Tabs", ";": "Semicolons", "|": "Bars (|)"}
    divided = (one for one in named if wanted in (name.strip('" ') for name in header.split(one)))
    found = next(divided, None)
    if found is None or header == wanted:
        return None
    if found in (",", "\t"):
        return f"{named[found]} separate its columns: --format {'csv' if found == ',' else 'tsv'}"
    return (
        f"{named[found]} separate its columns, and only commas and tabs are read. Write it with commas "
        f"first, with pandas for example: read_csv({file.path!r}, sep={found!r}, dtype=str, "
        "keep_default_na=False).to_csv('converted.csv', index=False)"
    )


def _is_cut_off(view: ByteView, offset: int) -> bool:
    """Tell whether damage to a compressed file ends its text at `offset`; that is reported by itself."""
    return isinstance(view, StreamView) and view.is_cut_off_at(offset)


def _parse_field(cell: bytes, kind: Kind) -> Any:
    """Return a field as a value of the kind that --where compares it with: an empty one is a missing number,
    and an empty text. `_UNREADABLE` if it is none of that kind."""
    text = decode_text(cell)[0]
    if kind == "text":
        return text
    if not text.strip():
        return None
    if kind == "truth":
        return {"true": True, "false": False}.get(text.strip().lower(), _UNREADABLE)
    if kind == "number":
        for parse in (int, float):
            with contextlib.suppress(ValueError):
                return parse(text)
        return _UNREADABLE
    return text


def _bad_record(
    file: InputFile, records: Records, number: int, offset: int, columns: int, wrong: str | None
) -> BadFileError:
    place = f"{file.path}: the record at byte {offset + int(records.starts[number]):,}"
    if wrong is not None:
        return BadFileError(f"{place} {wrong}.")
    if records.has_lone_return[number]:
        return BadFileError(f"{place} has a CR without LF in a field without quotes.")
    fields = int(records.fields[number])
    return BadFileError(f"{place} has {fields:,} field{'s'[: fields != 1]}, the header {columns:,}.")


def _stray(file: InputFile, record: int) -> BadFileError:
    return BadFileError(
        f'{file.path}: the record at byte {record:,} has a " neither around a field nor doubled inside one.',
        'Write such fields as RFC 4180 says ("a ""quoted"" word"), or leave out such records: '
        "--on-bad-file skip.",
    )


def _too_long(file: InputFile, record: int) -> BadFileError:
    return BadFileError(
        f"{file.path}: the record at byte {record:,} is longer than {MAX_RECORD_BYTES:,} bytes.",
        "If a quote is missing, repair it. Put documents of that length into text files (--separator none), "
        "or leave out such records: --on-bad-file skip.",
    )
