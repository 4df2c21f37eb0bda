"""Sources that make a thread of a worker fail. Importable by worker processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import connection, current_process
from pathlib import Path
from typing import Any

from fineweb_shards.executors.local import worker
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.sources.source import Parts
from fineweb_shards.storage.place import LOCAL, InputFile, Place
from fineweb_shards.types import Batch, TextChunk


def with_format(source: Parts, kind: type[ParquetFormat]) -> Parts:
    """The same files, read by a format that has a fault."""
    part = source.parts[0]
    return Parts((replace(part, readers={(LOCAL, "parquet"): kind(part.settings)}),))


class FailingPrefetch(ParquetFormat):
    """As a client's exception that nobody translated."""

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        raise ValueError("Retry-After: 1.5")


class ExitingPrefetch(ParquetFormat):
    """Not even an `Exception`."""

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        raise SystemExit(0)


class CrashingReader(ParquetFormat):
    """Ends the process that reads a certain row group, as a fault in a library would."""

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        if batch.position == 20:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().chunks(file, batch)


class SleepingReader(ParquetFormat):
    """Falls asleep for ever, and leaves a note that it does."""

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        notes = Path(os.environ["TEST_ASLEEP"])
        notes.mkdir(exist_ok=True)
        (notes / str(os.getpid())).touch()
        time.sleep(10**6)
        return super().chunks(file, batch)


class BlindToItsParent(ParquetFormat):
    """In a worker: the thread that watches the parent fails."""

    def __init__(self, settings: ReadSettings, place: Place | None = None) -> None:
        super().__init__(settings, place)
        if current_process().name == "fineweb-shards worker":
            worker.connection = _Broken  # type: ignore[attr-defined]


class _Broken:
    Connection = connection.Connection

    @staticmethod
    def wait(*arguments: Any) -> None:
        raise ZeroDivisionError("the watch fails")


def _explode() -> None:
    raise ZeroDivisionError("this order can't be read")


class Bomb:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _explode, ()


def mined(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches that no worker can receive."""
    for batch in batches:
        yield replace(batch, payload=Bomb())  # type: ignore[arg-type]
