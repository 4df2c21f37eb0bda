"""Stream datasets on the hub that are not parquet (JSON, CSV, text, …) front to back with `datasets`.

The parent reads the rows and passes them to the workers as JSON lines; the position is the row's number. After an
interruption it opens the stream again and skips the rows it has read. The resumable state of `datasets` has skipped and
repeated rows (datasets#8145, #8308, #7538), so it is not used.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from fineweb_shards.errors import BadFileError, HubError
from fineweb_shards.formats.base import decode_text, first_line
from fineweb_shards.formats.columns import outer_name
from fineweb_shards.formats.jsonl import JsonLinesFormat
from fineweb_shards.storage.hub_session import hub_host, translated_errors
from fineweb_shards.storage.place import InputFile
from fineweb_shards.system.retry import TransientError
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.types import Batch

_DAMAGE = (ValueError, TypeError, LookupError, pa.ArrowException, tarfile.TarError)  # raised for damaged content


class HubRowsFormat(JsonLinesFormat):
    def by_value(self, file: InputFile) -> bool:
        return True

    def place_of(self, batch: Batch, line: int, offset: int) -> int:
        return batch.position + line

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        lines: list[str] = []
        size, first = 0, position
        rows, failure, columns = self._rows(position), None, self.settings.needed_columns
        row: dict[str, Any] | None = {}
        while row is not None:
            try:
                row = next(rows, None)
            except BadFileError as error:
                row, failure = None, error  # raised after the rows before it, whatever the batch size
            if row is not None:
                # Only the needed columns or, without a document, all keys, for the error.
                is_there = all(outer_name(row, name) in row for name in self.settings.columns)
                missing = {} if is_there else dict.fromkeys(row)
                outer = dict.fromkeys(outer_name(row, name) for name in columns)
                kept = {name: row[name] for name in outer if name in row}
                lines.append(json.dumps(missing | kept, default=_as_json))
                size += len(lines[-1])
            if lines and (row is None or size >= self.settings.batch_bytes):
                payload = SharedBytes("\n".join(lines).encode())
                yield Batch(file.index, first, first + len(lines), size, payload=payload)
                first, size, lines = first + len(lines), 0, []
        if failure is not None:
            raise failure

    def _rows(self, position: int) -> Iterator[dict[str, Any]]:
        """Yield the rows from `position` on, across any number of interruptions."""
        rows: Iterator[Any] | None = None

        def next_row() -> Any:
            nonlocal rows
            try:
                with translated_errors("the dataset"):
                    if rows is None:
                        rows = iter(self._open_rows(position))
                    return next(rows, None)
            except TransientError:
                rows = None  # open the stream again, at the next row
                raise
            except MemoryError:
                raise  # also pyarrow's subclass of it, which is an ArrowException
            except Exception as error:
                # The exception of `datasets`, recognized by name to avoid the import.
                by_datasets = any(kind.__name__ == "DatasetBuildError" for kind in type(error).__mro__)
                if not by_datasets and not isinstance(error, _DAMAGE):
                    raise
                dataset = f"dataset {self.settings.hub.dataset}" if self.settings.hub else "the dataset"
                message = f"{dataset}: row {position:,} can't be read: {first_line(error)}."
                raise BadFileError(message) from error

        while (row := self.place.retrier.call(next_row)) is not None:
            position += 1
            yield row

    def _open_rows(self, position: int) -> Any:
        import datasets

        hub = self.settings.hub
        assert hub is not None
        try:
            stream = datasets.load_dataset(
                hub.dataset, name=hub.name or None, split=hub.hub_split, revision=hub.commit, streaming=True
            )
        except FileNotFoundError as error:
            if type(error) is FileNotFoundError:  # this is how `datasets` reports an outage
                raise TransientError(f"{hub_host()}: the listing could not be read") from None
            raise HubError(f"dataset {hub.dataset}: {first_line(error)}") from None
        names = stream.column_names
        if names is not None:
            for column in self.settings.needed_columns:
                if outer_name(names, column) not in names:
                    is_ours = column in self.settings.columns
                    raise HubError(
                        f"dataset {hub.dataset}: there is no column {column!r}; the columns are: {', '.join(names)}.",
                        self.settings.column_hint() if is_ours else "Check the names in --where.",
                    )
            outer = dict.fromkeys(outer_name(names, name) for name in self.settings.needed_columns)
            stream = stream.select_columns([*outer])
        return stream.skip(position) if position else stream


def _as_json(value: Any) -> Any:
    """Convert a value that JSON lacks: bytes to text, as in parquet; anything else to its type's name."""
    return decode_text(value)[0] if isinstance(value, bytes) else {type(value).__name__: None}
