"""Read JSON lines: batches are byte ranges that end at line ends; every line is an object that contains a text or a
list of ids.

A bad line, such as one that is too long, is left out (`--on-bad-file skip`), or stops the run once everything before it
has been read. Neither depends on where batches end.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import orjson

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import decode_text
from fineweb_shards.formats.columns import find_value
from fineweb_shards.formats.ranges import ByteView, next_target, with_bytes
from fineweb_shards.formats.rows import TokenRows, parse_ids
from fineweb_shards.formats.text import TextFormat, go_to
from fineweb_shards.formats.text_samples import SAMPLE_BYTES, check_is_text
from fineweb_shards.formats.where import kind_of
from fineweb_shards.storage.place import InputFile
from fineweb_shards.texts import Ids, Texts, encode_utf8
from fineweb_shards.types import Batch, Counts, Cursor, Origin, TextChunk

# Longer lines would need a parser that works in pieces; such documents belong in text files.
MAX_LINE_BYTES = 64 * 2**20
_WINDOW_BYTES = 64 * 1024
_MOST_DIGITS = 400  # more than any double has
_ROUNDED = 2.0**63  # orjson returns longer whole numbers as doubles
_MISSING = object()  # the value of a missing key
LONG_HINT = "Put documents of that length into text files (--separator none), or leave out such {}: --on-bad-file skip."


# One for all lines, because creating it is slow. Python refuses to parse very long whole numbers.
_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else float(digits))


class _Row(NamedTuple):
    document: bytes | Ids | None  # UTF-8 or, with --tokens-column, ids; None if it is null
    id: str | None
    replaced: int  # characters
    values: tuple[Any, ...]  # of the keys that --where needs


class JsonLinesFormat(TextFormat):
    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        with contextlib.closing(self.open_view(file)) as view:
            head = view.read_at(0, SAMPLE_BYTES)
            check_is_text(file, head)
            if is_array(head):
                hint = f"Convert it first: jq -c '.[]' {shlex.quote(file.path)} > converted.jsonl"
                raise BadFileError(f"{file.path}: this is one JSON array, not JSON lines.", hint)
            go_to(file, view, position)
            yield from with_bytes(view, self._ranges(file, view, position))

    def _ranges(self, file: InputFile, view: ByteView, start: int) -> Iterator[Batch]:
        """Yield whole lines, about `batch_bytes` at a time; a line that is too long gets a batch of its own."""
        while view.read_at(start, 1):
            target = next_target(start, self.settings.batch_bytes) - 1
            end = _find_line_end(view, target, start + MAX_LINE_BYTES)
            if end is None:  # is the line around `target` too long, or only far from `start`?
                line = start + view.read_at(start, target - start).rfind(b"\n") + 1
                end = _find_line_end(view, line, line + MAX_LINE_BYTES)
            if end is not None:
                yield Batch(file.index, start, end, end - start)
            else:
                if line > start:
                    yield Batch(file.index, start, line, line - start)
                end = skip_line(view, line)
                if not view.is_cut_off_at(end):
                    yield Batch(file.index, line, end, 0, problem=self.leave_out(_too_long(file, line)))
            start = end

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        data = self.read_range(file, batch)
        lines = data.split(b"\n")
        if batch.broken_off:
            lines.pop()
        rows: list[_Row] = []
        problems: list[str] = []
        failure: BadFileError | None = None
        offset, end = batch.position, batch.end
        start: Cursor | None = Cursor(batch.file, batch.position)
        # A template may make documents far longer than their lines: a chunk has at most twice the batch's bytes.
        template = self.settings.template
        most_rows = len(data) // max(1, template.literal_bytes if template else 0) + 1
        for number, line in enumerate(lines):
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise _too_long(file, offset)
                text = line if offset else line.removeprefix(codecs.BOM_UTF8)
                if text.strip():  # empty lines are ignored
                    rows.append(self._parse_line(file, text, offset))
                    if len(rows) > most_rows:
                        yield replace(self._make_chunk(rows), start=start)
                        rows, start = [], None
            except BadFileError as error:
                if not self.settings.skip_bad:
                    failure, end = error, self.place_of(batch, number, offset)
                    break
                problems.append(self.leave_out(error))
            offset += len(line) + 1
        chunk = self._make_chunk(rows)
        counts = chunk.counts + Counts(bad_parts=len(problems))
        yield replace(chunk, start=start, end=Cursor(batch.file, end), counts=counts, problems=tuple(problems))
        if failure is not None:  # raised after the documents before it
            raise failure

    def _make_chunk(self, rows: list[_Row]) -> TextChunk:
        """Return the documents that --where keeps as a chunk without cursors."""
        counts = Counts()
        if self.row_filter is not None:
            passes, counts = self.row_filter.select_values([row.values for row in rows])
            rows = list(compress(rows, passes))
        counts += Counts(
            skipped_documents=sum(row.document is None for row in rows),
            replaced_characters=sum(row.replaced for row in rows),
        )
        rows = [row for row in rows if row.document is not None]
        if self.settings.tokens_column is not None:
            found = TokenRows.from_arrays([row.document for row in rows if isinstance(row.document, np.ndarray)])
            vocabulary = self.settings.vocabulary
            lists = found.without_outer_eots(vocabulary).to_documents(vocabulary)
            return TextChunk(lists, None, None, counts=counts)
        texts = Texts.from_pieces([row.document for row in rows if isinstance(row.document, bytes)])
        origin = Origin(0, len(rows), ids=[row.id for row in rows])
        return TextChunk(texts, None, None, counts=counts + Counts(texts.size_bytes), origins=(origin,))

    def place_of(self, batch: Batch, line: int, offset: int) -> int:
        """Return the position, in this format's unit, of a line of a batch that begins at byte `offset`."""
        return offset

    def _parse_line(self, file: InputFile, line: bytes, offset: int) -> _Row:
        """Parse a line; BadFileError if --where can't be applied to it, or keeps it although it has no document."""
        # orjson takes half the time. Python's parser decides about every line that orjson refuses (it supports neither
        # NaN nor lone surrogates), and about every line without a document.
        try:
            row = orjson.loads(line)
            text, name = row.get(self._plain_column), row.get("id")  # the most frequent case first
            document = encode_utf8(text) if isinstance(text, str) else self._to_document(row)
            values = self._values(file, row, offset)
            # orjson rounds whole numbers of more than 64 bits.
            if not any(isinstance(value, float) and abs(value) >= _ROUNDED for value in values):
                return _Row(document, name if isinstance(name, str) else None, 0, values)
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        return self._parse_slowly(file, line, offset)

    def _values(self, file: InputFile, row: dict[str, Any], offset: int) -> tuple[Any, ...]:
        try:
            return self.row_filter.read_values(row) if self.row_filter else ()
        except ValueError as problem:
            hint = "Correct --where or the line, or leave out such lines: --on-bad-file skip."
            raise BadFileError(f"{file.path}: the line at byte {offset:,} {problem}.", hint) from None

    def _parse_slowly(self, file: InputFile, line: bytes, offset: int) -> _Row:
        place = f"{file.path}: the line at byte {offset:,}"
        source, replaced = decode_text(line)
        try:
            row = _DECODER.decode(source)
        except ValueError as error:
            raise BadFileError(f"{place} is not JSON: {error}.") from error
        except RecursionError as error:
            raise BadFileError(f"{place} is nested too deeply.") from error
        if not isinstance(row, dict):
            raise BadFileError(f"{place} is a JSON {type(row).__name__}, not an object.")
        values, name = self._values(file, row, offset), row.get("id")
        document, failure = None, None
        try:
            document = self._to_document(row)
        except KeyError as error:
            keys = ", ".join(map(str, row))[:200]
            problem = f"{place} has no key {error.args[0]!r}; its keys are: {keys}."
            failure = BadFileError(problem, self.settings.column_hint("key"))
        except (TypeError, ValueError) as error:
            failure = BadFileError(f"{place}: {error}.")
        if failure is not None and (self.row_filter is None or self.row_filter.select_values([values])[0][0]):
            raise failure
        return _Row(document, name if isinstance(name, str) else None, replaced, values)

    @cached_property
    def _plain_column(self) -> str | None:
        is_plain = self.settings.template is None and self.settings.tokens_column is None
        return self.settings.text_column if is_plain else None

    def _to_document(self, row: dict[str, Any]) -> bytes | Ids | None:
        """Return the document of a line, None if it is null; KeyError with a missing key, TypeError or ValueError with
        a phrase about an unusable value."""
        cells: list[Any] = []
        for name in self.settings.columns:
            value = row[name] if name in row else find_value(row, name, _MISSING)
            if value is _MISSING:
                raise KeyError(name)
            if value is not None and self.settings.tokens_column is not None:
                try:
                    value = parse_ids(value, self.settings.vocabulary)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{name!r} {error}") from error
            elif isinstance(value, str):
                value = encode_utf8(value)
            elif value is not None:
                found = "number" if kind_of(value) == "number" else type(value).__name__
                raise TypeError(f"{name!r} is not a text but a {found}")
            cells.append(value)
        return cells[0] if self.settings.template is None else self.settings.template.fill(cells)


def _find_line_end(view: ByteView, offset: int, limit: int) -> int | None:
    """Return the offset after the first line end from `offset` to `limit`, or the file's end; None without one."""
    while offset <= limit:
        window = view.read_at(offset, _WINDOW_BYTES)
        if (found := window.find(b"\n")) >= 0:
            return offset + found + 1 if offset + found <= limit else None
        if len(window) < _WINDOW_BYTES:
            return view.size_bytes if view.size_bytes <= limit else None
        offset += _WINDOW_BYTES
    return None


def skip_line(view: ByteView, offset: int) -> int:
    """Return the offset after a line of any length, in constant memory."""
    while (end := _find_line_end(view, offset, offset + _WINDOW_BYTES - 1)) is None:
        offset += _WINDOW_BYTES
        view.forget(offset)
    return end


def _too_long(file: InputFile, offset: int) -> BadFileError:
    return BadFileError(
        f"{file.path}: the line at byte {offset:,} is longer than {MAX_LINE_BYTES:,} bytes.", LONG_HINT.format("lines")
    )


def is_array(head: bytes) -> bool:
    """Return whether a file is one JSON array, by its beginning."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
