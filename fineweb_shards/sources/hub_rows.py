"""Any other dataset on the hub (JSON, CSV, text, …): streamed front to back with `datasets`.

One producer reads rows and hands them to the workers as JSON lines; the position is the row's number.
`datasets`' own state is not used: it has skipped and repeated rows (datasets#8145, #8308, #7538). After an
interruption the stream is opened again and rows are skipped up to the one that is due.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fineweb_shards.errors import HubError
from fineweb_shards.outage import Trouble
from fineweb_shards.sources.base import InputFile
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.ranges import translated_errors
from fineweb_shards.types import Batch

_END = object()


class HubRowsFormat(JsonLinesFormat):
    def batches(self, file: InputFile, position: int, inside: bool) -> Iterator[Batch]:
        lines: list[str] = []
        size, first = 0, position
        for row in self._rows(position):
            lines.append(json.dumps({self.settings.text_column: row}))
            size += len(lines[-1])
            if size >= self.settings.batch_bytes:
                payload = "\n".join(lines).encode()
                yield Batch(file.index, first, first + len(lines), size, payload=payload)
                first, size, lines = first + len(lines), 0, []
        if lines:
            payload = "\n".join(lines).encode()
            yield Batch(file.index, first, first + len(lines), size, payload=payload)

    def place_of(self, batch: Batch, line: int, offset: int) -> int:
        return batch.position + line

    def _rows(self, position: int) -> Iterator[Any]:
        """The text of every row from `position` on, through any number of interruptions."""
        rows: Iterator[Any] | None = None

        def next_row() -> Any:
            nonlocal rows
            try:
                with translated_errors("the dataset"):
                    if rows is None:
                        rows = iter(self._open(position))
                    return next(rows, _END)
            except Trouble:
                rows = None  # open it again, at the row that is due
                raise

        while (row := self.patience.call(next_row)) is not _END:
            position += 1
            yield row[self.settings.text_column]

    def _open(self, position: int) -> Any:
        import datasets

        hub = self.settings.hub
        assert hub is not None
        try:
            stream = datasets.load_dataset(
                hub.dataset, name=hub.name or None, split=hub.split, revision=hub.commit, streaming=True
            )
        except FileNotFoundError as error:
            if type(error) is FileNotFoundError:  # how `datasets` tells an outage
                raise Trouble("the listing could not be read") from None
            raise HubError(f"dataset {hub.dataset}: {str(error).splitlines()[0]}") from None
        column = self.settings.text_column
        names = stream.column_names
        if names is not None and column not in names:
            raise HubError(
                f"dataset {hub.dataset}: there is no column {column!r}; the columns are: {', '.join(names)}.",
                "Name the one with the text: --text-column.",
            )
        if names is not None:
            stream = stream.select_columns([column])
        return stream.skip(position) if position else stream
