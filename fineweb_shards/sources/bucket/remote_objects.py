"""The objects in buckets that this process reads: every range of the object that was listed, by its ETag."""

from __future__ import annotations

from typing import BinaryIO

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.buckets.objects import ObjectInfo
from fineweb_shards.buckets.ranges import Ranges
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile

# Stands for the ETag of an object in a store that gives none.
_BY_DATE = "modified "


def content_hash(info: ObjectInfo) -> str:
    """Return what shows that an object was replaced."""
    return info.etag or f"{_BY_DATE}{info.modified_seconds}"


class RemoteObjects:
    """Opens objects by their address, with one client for each bucket."""

    def __init__(self, max_outage_seconds: float, observer: Observer) -> None:
        self._max_outage_seconds = max_outage_seconds
        self._observer = observer
        self._buckets: dict[str, Bucket] = {}

    def get(self, file: InputFile, address: str | None = None) -> Ranges:
        """Return an object to read it by ranges."""
        bucket, info = self._find(file)
        return bucket.ranges(info)

    def open(self, file: InputFile) -> BinaryIO:
        """Return an object to read it front to back."""
        bucket, info = self._find(file)
        return bucket.open(info.name, info)

    def forget(self, path: str) -> None:
        """Nothing is kept of an object."""

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        """Return an object's bucket, and what the listing said of it."""
        scheme, _, rest = file.path.partition("://")
        name, _, key = rest.partition("/")
        url = f"{scheme}://{name}"
        bucket = self._buckets.get(url)
        if bucket is None:
            bucket = self._buckets[url] = Bucket(url, self._max_outage_seconds, self._observer)
        etag = "" if file.content_hash.startswith(_BY_DATE) else file.content_hash
        return bucket, ObjectInfo(key, file.size_bytes, etag, 0.0)
