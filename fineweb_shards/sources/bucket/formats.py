"""The formats that read objects in buckets.

Parquet, and text and JSON lines that are not compressed, by ranges in the workers, as on the hub. CSV and
what is compressed can only be read front to back: the parent fetches it, several ranges ahead.
"""

from __future__ import annotations

from typing import BinaryIO

from fineweb_shards.sources.base import Format, InputFile
from fineweb_shards.sources.bucket.remote_objects import RemoteObjects
from fineweb_shards.sources.delimited import CsvFormat, TsvFormat
from fineweb_shards.sources.jsonl import JsonLinesFormat
from fineweb_shards.sources.ranged_parquet import RangedParquetFormat
from fineweb_shards.sources.ranged_text import RangedTextFormat


class _InBucket(Format):
    """What formats that read from buckets share."""

    def open_remotes(self) -> RemoteObjects:
        self._objects = RemoteObjects(self.settings.max_outage_seconds, self.retrier.observer)
        return self._objects

    def open_packed(self, file: InputFile) -> BinaryIO:
        return self._objects.open(file)


class BucketParquetFormat(_InBucket, RangedParquetFormat):
    """Parquet files in a bucket."""


class BucketTextFormat(_InBucket, RangedTextFormat):
    """Text in a bucket."""


class BucketJsonLinesFormat(_InBucket, RangedTextFormat, JsonLinesFormat):
    """JSON lines in a bucket."""


class BucketCsvFormat(_InBucket, RangedTextFormat, CsvFormat):
    """CSV in a bucket."""


class BucketTsvFormat(_InBucket, RangedTextFormat, TsvFormat):
    """TSV in a bucket."""
