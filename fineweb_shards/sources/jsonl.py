"""JSON lines: byte ranges at line ends; every line an object with a text in it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fineweb_shards.errors import BadFileError
from fineweb_shards.sources.base import InputFile, decode_text
from fineweb_shards.sources.stream import FileView, StreamView, open_view
from fineweb_shards.sources.text import Range, TextFormat, batches_of, go_to
from fineweb_shards.types import Batch, Counts, Cursor, Origin, TextChunk

# Longer lines would have to be parsed in pieces; such a document belongs in a text file.
MAX_LINE_BYTES = 64 * 2**20
_WINDOW_BYTES = 64 * 1024


class _Number:
    """A whole number that nobody asks for."""

    def __init__(self, digits: str) -> None: ...


class JsonLinesFormat(TextFormat):
    def batches(self, file: InputFile, position: int, inside: bool) -> Iterator[Batch]:
        view = open_view(file)
        try:
            head = view.read_at(0, 4096).removeprefix(b"\xef\xbb\xbf").lstrip()
            if head.startswith(b"["):
                raise BadFileError(
                    f"{file.path}: this is one JSON array, not JSON lines.",
                    f"Convert it first: jq -c '.[]' {file.path} > converted.jsonl",
                )
            go_to(file, view, position)
            yield from batches_of(file, view, self._ranges(file, view, position), "")
        finally:
            view.close()

    def _ranges(self, file: InputFile, view: FileView | StreamView, start: int) -> Iterator[Range]:
        while view.read_at(start, 1):
            offset = start + self.settings.batch_bytes - 1
            while True:
                window = view.read_at(offset, _WINDOW_BYTES)
                end = window.find(b"\n") + 1
                if end or len(window) < _WINDOW_BYTES:
                    break
                offset += _WINDOW_BYTES
                if offset - start > MAX_LINE_BYTES + self.settings.batch_bytes:
                    raise BadFileError(
                        f"{file.path}: the line near byte {start:,} is longer than {MAX_LINE_BYTES:,} bytes.",
                        "Put documents of that length into text files (--separator none).",
                    )
            stop = offset + end if end else view.size_bytes
            yield Range(start, stop, inside=False, ends_inside=False, seam=False)
            start = stop

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        data = self.read_range(file, batch)
        documents: list[str] = []
        ids: list[str | None] = []
        counts = Counts(len(data))
        problems: list[str] = []
        offset = batch.position
        lines = data.split(b"\n")
        if batch.broken_off:
            lines.pop()
        if batch.position == 0:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        for line in lines:
            try:
                if line.strip():  # an empty line is no row
                    text, name, replaced = self._parse_line(file, line, offset)
                    counts += Counts(skipped_documents=text is None, replaced_characters=replaced)
                    if text is not None:
                        documents.append(text)
                        ids.append(name)
            except BadFileError as error:
                if not self.settings.skip_bad:
                    raise
                problems.append(f"left out: {error.message}")
                counts += Counts(bad_parts=1)
            offset += len(line) + 1
        yield TextChunk(
            documents,
            Cursor(batch.file, batch.position),
            Cursor(batch.file, batch.end),
            counts=counts,
            problems=tuple(problems),
            origins=(Origin(0, len(ids), ids=ids),),
        )

    def _parse_line(self, file: InputFile, line: bytes, offset: int) -> tuple[str | None, str | None, int]:
        """The text of a line (None where it is null), its id, and how many characters were replaced."""
        place = f"{file.path}: the line at byte {offset:,}"
        source, replaced = decode_text(line)
        try:
            # Whole numbers are not looked at: Python refuses very long ones.
            row = json.loads(source, parse_int=_Number)
        except ValueError as error:
            raise BadFileError(f"{place} is no JSON: {error}.") from error
        except RecursionError as error:
            raise BadFileError(f"{place} is nested too deeply.") from error
        column = self.settings.text_column
        if not isinstance(row, dict):
            raise BadFileError(f"{place} is a JSON {type(row).__name__}, not an object.")
        if column not in row:
            raise BadFileError(
                f"{place} has no key {column!r}; its keys are: {', '.join(map(str, row))[:200]}.",
                "Name the key with the text: --text-column.",
            )
        text = row[column]
        if text is not None and not isinstance(text, str):
            raise BadFileError(
                f"{place}: {column!r} is not a text but a {type(text).__name__.strip('_').lower()}."
            )
        name = row.get("id")
        return text, name if isinstance(name, str) else None, replaced
