"""Read CSV and TSV: batches are byte ranges that end at record ends; the first record names the columns.

Quoting follows RFC 4180, in TSV as well: a `"` may only stand at both ends of a field and, doubled, inside such a
field. Then a byte is quoted exactly if the number of `"` before it is odd, and NumPy finds records at 1 GB/s, without a
step for each character. To find the ends of records, the parent reads the whole file once and counts quotes; the
workers split their ranges.

`find_stray_quote` finds the first `"` anywhere else: after it counting would be wrong, and the end of the record is
unknown. With `--on-bad-file skip` everything from the record's beginning to the end of the line with that quote is left
out, and a new record begins. That depends only on the file.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import decode_text, decode_texts, is_utf8
from fineweb_shards.formats.jsonl import LONG_HINT, skip_line
from fineweb_shards.formats.ranges import ByteView, next_target, with_bytes
from fineweb_shards.formats.rows import append_chunk
from fineweb_shards.formats.text import TextFormat, go_to
from fineweb_shards.formats.text_samples import SAMPLE_BYTES, check_is_text
from fineweb_shards.formats.where import IN_WORDS, Kind
from fineweb_shards.storage.place import InputFile
from fineweb_shards.texts import NO_TEXTS, Texts
from fineweb_shards.types import Batch, Counts, Cursor, Origin, Positions, TextChunk

# As for JSON lines: an unclosed quote must not accumulate gigabytes.
MAX_RECORD_BYTES = 64 * 2**20
BLOCK_BYTES = 2**20
_SHORT_LITERAL_BYTES = 16  # of a template, per record
_QUOTE, _LINE_END, _RETURN = b'"\n\r'
_STRAY_HINT = 'Write such fields as RFC 4180 says ("a ""quoted"" word"), or leave out such records: --on-bad-file skip.'
_UNREADABLE = object()  # a field of the wrong kind


class CsvFormat(TextFormat):
    delimiter = b","

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        with contextlib.closing(self.open_view(file)) as view:
            head = view.read_at(0, SAMPLE_BYTES)
            check_is_text(file, head)
            columns, header_bytes = self._read_header(file, head)
            go_to(file, view, position)
            for batch in with_bytes(view, self._ranges(file, view, position or header_bytes)):
                yield replace(batch, columns=columns)

    def _read_header(self, file: InputFile, head: bytes) -> tuple[tuple[str, ...], int]:
        """Return the names of the columns, and where the records begin; no names if the file is empty. BadFileError
        unless they include the columns with the text, and those of --where, exactly once."""
        body = head.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
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
        hint = f"{self.settings.column_hint()} The first line must hold the names."
        wanted = [(name, hint) for name in self.settings.columns]
        if self.settings.where:
            wanted += [(name, "Check the names in --where.") for name in self.settings.where.columns]
        for name, hint in wanted:
            if (count := names.count(name)) == 1:
                continue
            found = f"{count} columns are called {name!r}" if count else f"there is no column {name!r}"
            if len(names) == 1:  # perhaps because of another delimiter
                hint = f"Columns are separated by commas (--format csv) or tabs (--format tsv). {hint}"
            raise BadFileError(f"{file.path}: {found}; the columns are: {', '.join(names)[:200]}.", hint)
        return names, start + end

    def _ranges(self, file: InputFile, view: ByteView, start: int) -> Iterator[Batch]:
        """Yield whole records, about `batch_bytes` at a time; a bad record gets a batch of its own."""
        record = offset = start  # `record`: the beginning of the unfinished one at `offset`
        quoted = False
        while data := view.read_at(offset, BLOCK_BYTES):
            block = Block.of(data, quoted)
            before = view.read_at(offset - 1, 1) if offset > record else b"\n"
            after = view.read_at(offset + len(data), 1) or b"\n"
            stray = block.find_stray_quote(before, after, self.delimiter)
            for end in self._record_ends(block, offset, len(data) if stray is None else stray):
                if end - record > MAX_RECORD_BYTES:
                    if record > start:
                        yield Batch(file.index, start, record, record - start)
                    yield Batch(file.index, record, end, 0, problem=self.leave_out(_too_long(file, record)))
                    start = end
                elif end >= next_target(start, self.settings.batch_bytes):
                    yield Batch(file.index, start, end, end - start)
                    start = end
                record = end
            offset, quoted = offset + len(data), block.ends_quoted
            if stray is None and offset - record <= MAX_RECORD_BYTES:
                continue
            if record > start:
                yield Batch(file.index, start, record, record - start)
                start = record
            if stray is not None:
                offset, quoted = skip_line(view, offset - len(data) + stray), False
                if not view.is_cut_off_at(offset):
                    what = 'has a " neither around a field nor doubled inside one'
                    error = _bad_record(file, record, what, _STRAY_HINT)
                    yield Batch(file.index, record, offset, 0, problem=self.leave_out(error))
                start = record = offset
            else:
                self.leave_out(_too_long(file, record))  # raise now, or look for its end
                view.forget(offset - 1)
        # The last record may lack a line end. One that ends in damage to a compressed file is reported with that.
        problem = None
        if quoted:
            problem = _bad_record(file, record, 'has a " that is not closed')
        elif offset - record > MAX_RECORD_BYTES:
            problem = _too_long(file, record)
        is_cut_off = view.is_cut_off_at(offset)
        whole = record if problem or is_cut_off else offset
        if whole > start:
            yield Batch(file.index, start, whole, whole - start)
        if problem and not is_cut_off:
            yield Batch(file.index, record, offset, 0, problem=self.leave_out(problem))

    def _record_ends(self, block: Block, offset: int, limit: int) -> Iterator[int]:
        """Yield, in order, the ends of the first and the last record that end in a block before `limit`, and between
        them the possible ends of batches. `offset` is the block's position in the file."""
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

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        chunk = TextChunk(NO_TEXTS, Cursor(batch.file, batch.position), Cursor(batch.file, batch.end))
        data = self.read_range(file, batch)
        # A template may make documents far longer than their records.
        literal_bytes = self.settings.template.literal_bytes if self.settings.template else 0
        block_bytes = BLOCK_BYTES // max(1, literal_bytes // _SHORT_LITERAL_BYTES)
        for offset, block in slices_of_records(data, block_bytes):
            if chunk.documents.size_bytes > len(data):
                yield replace(chunk, end=None)
                chunk = TextChunk(NO_TEXTS, None, chunk.end)
            part, failure = self._read_records(file, batch.columns, block, batch.position + offset)
            chunk = append_chunk(chunk, part)
            if failure is not None:  # raised after the documents before it
                yield replace(chunk, end=part.end)
                raise failure
        yield chunk

    def _read_records(
        self, file: InputFile, columns: tuple[str, ...], block: Block, offset: int
    ) -> tuple[TextChunk, BadFileError | None]:
        """Read the documents of a block, at byte `offset` of the file, up to a failure that ends the run."""
        records = split_records(block, self.delimiter)
        sound = records.fields == len(columns)
        values, wrong = self._read_values(columns, records, sound)
        problems: list[str] = []
        failure, end = None, None
        for number in np.flatnonzero(~sound).tolist():
            fields, place = int(records.fields[number]), offset + int(records.starts[number])
            what = f"has {fields:,} field{'s'[: fields != 1]}, the header {len(columns):,}"
            error = _bad_record(file, place, wrong.get(number, what))
            if not self.settings.skip_bad:
                sound[number:] = False
                failure, end = error, Cursor(file.index, place)
                break
            problems.append(self.leave_out(error))
        left_out = Counts()
        if self.row_filter is not None:
            numbers = np.flatnonzero(sound).tolist()
            passes, left_out = self.row_filter.select_values([values[number] for number in numbers])
            sound[numbers] = passes
        cells = records.take(sound, columns.index(self.settings.columns[0]))
        if template := self.settings.template:
            others = (records.take(sound, columns.index(name)) for name in template.columns[1:])
            cells = [template.fill(texts) or b"" for texts in zip(cells, *others, strict=True)]
        texts, replaced = (Texts.from_pieces(cells), 0) if is_utf8(block.data) else decode_texts(cells)
        ids = None
        if columns.count("id") == 1:
            ids = [decode_text(cell)[0] for cell in records.take(sound, columns.index("id"))]
        counts = Counts(sum(map(len, cells)), replaced_characters=replaced, bad_parts=len(problems))
        origins = (Origin(0, len(texts), ids=ids),)
        chunk = TextChunk(texts, None, end, counts=counts + left_out, problems=tuple(problems), origins=origins)
        return chunk, failure

    def _read_values(
        self, columns: tuple[str, ...], records: Records, sound: NDArray[np.bool_]
    ) -> tuple[dict[int, tuple[Any, ...]], dict[int, str]]:
        """Return the values that --where needs, by record number, and a phrase about each record with a value of the
        wrong kind, which is no longer `sound`."""
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
    delimiter = b"\t"


def _parse_field(cell: bytes, kind: Kind) -> Any:
    """Return a field as a value of the kind that --where compares it with: an empty field is a missing number, or an
    empty text. `_UNREADABLE` if it has another kind."""
    text = decode_text(cell)[0]
    if kind == "text":
        return text
    if not text.strip():
        return None
    if kind == "any":
        return text
    if kind == "truth":
        return {"true": True, "false": False}.get(text.strip().lower(), _UNREADABLE)
    for parse in (int, float):
        with contextlib.suppress(ValueError):
            return parse(text)
    return _UNREADABLE


def _bad_record(file: InputFile, place: int, what: str, hint: str | None = None) -> BadFileError:
    return BadFileError(f"{file.path}: the record at byte {place:,} {what}.", hint)


def _too_long(file: InputFile, record: int) -> BadFileError:
    hint = f"If a quote is missing, repair it. {LONG_HINT.format('records')}"
    return _bad_record(file, record, f"is longer than {MAX_RECORD_BYTES:,} bytes", hint)


# Where records and fields end


@dataclass(frozen=True, slots=True)
class Block:
    """Some bytes of a file, and the positions of their quotes."""

    data: bytes
    quotes: Positions
    starts_quoted: bool

    @classmethod
    def of(cls, data: bytes, starts_quoted: bool = False) -> Block:
        return cls(data, np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE), starts_quoted)

    @property
    def ends_quoted(self) -> bool:
        return (len(self.quotes) + self.starts_quoted) % 2 == 1

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
        """Return the position of the first quote that is neither at an end of a field nor doubled. `before` and `after`
        are the bytes around the block; at the beginning and the end of the file, line ends."""
        framed = np.frombuffer(before + self.data + after, np.uint8)
        opening = (np.arange(len(self.quotes)) + self.starts_quoted) % 2 == 0
        sound = np.where(
            opening,
            np.isin(framed[self.quotes], (delimiter[0], _LINE_END, _QUOTE)),
            np.isin(framed[self.quotes + 2], (delimiter[0], _LINE_END, _RETURN, _QUOTE)),
        )
        return None if sound.all() else int(self.quotes[np.argmin(sound)])

    def find_field_ends(self, delimiter: bytes) -> Positions:
        """Return the positions of unquoted delimiters and line ends, piece by piece: quoted text may have many."""
        data = np.frombuffer(self.data, np.uint8)
        found = [np.empty(0, np.int64)]
        for offset in range(0, len(data), BLOCK_BYTES):
            piece = data[offset : offset + BLOCK_BYTES]
            places = np.flatnonzero((piece == delimiter[0]) | (piece == _LINE_END)) + offset
            found.append(places[(np.searchsorted(self.quotes, places) + self.starts_quoted) % 2 == 0])
        return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records, and the positions of their fields. Empty lines don't count as records."""

    block: Block
    starts: Positions  # of each record
    fields: Positions  # how many each record has
    ends: Positions  # of all fields, in order
    first: Positions  # the number of each record's first field

    def take(self, records: NDArray[np.bool_], field: int) -> list[bytes]:
        """Return one field of the chosen records, without quotes; all of them must have it."""
        data, numbers = self.block.data, self.first[records] + field
        starts = self.starts[records] if field == 0 else self.ends[numbers - 1] + 1
        ends = _without_return(data, self.ends[numbers])
        quotes = np.searchsorted(self.block.quotes, ends) - np.searchsorted(self.block.quotes, starts)
        starts, ends, has_doubled = starts + (quotes > 0), ends - (quotes > 0), quotes > 2
        places = zip(starts.tolist(), ends.tolist(), has_doubled.tolist(), strict=True)
        return [data[i:j].replace(b'""', b'"') if doubled else data[i:j] for i, j, doubled in places]


def split_records(block: Block, delimiter: bytes) -> Records:
    data = block.data
    ends = block.find_field_ends(delimiter)
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    ended = np.frombuffer(data + b"\n", np.uint8)
    last = np.flatnonzero(ended[ends] == _LINE_END)  # the number of each record's last field
    first = np.concatenate(([0], last[:-1] + 1))
    starts = np.concatenate(([0], ends[last[:-1]] + 1))
    record_ends = ends[last]
    wanted = starts < _without_return(data, record_ends)
    return Records(block, starts[wanted], (last - first + 1)[wanted], ends, first[wanted])


def _without_return(data: bytes, ends: Positions) -> Positions:
    """Move the ends of fields at a CRLF to before the CR."""
    if b"\r" not in data:
        return ends
    framed = np.frombuffer(b"\n" + data, np.uint8)
    return np.where(framed[ends] == _RETURN, ends - 1, ends)


def slices_of_records(data: bytes, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, Block]]:
    """Cut records into blocks of about `block_bytes`, each with its offset, to limit the positions in memory."""
    offset = 0
    while offset < len(data):
        size, end = block_bytes, None
        while end is None:
            block = Block.of(data[offset : offset + size])
            end = len(block.data) if offset + size >= len(data) else block.last_end(len(block.data))
            size *= 2
        yield offset, Block(block.data[:end], block.quotes[: np.searchsorted(block.quotes, end)], False)
        offset += end
