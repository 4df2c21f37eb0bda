"""Read an object by ranges, each with retries; large ones over several connections at once.

A store gives one connection 50 to 100 MB/s, and many give less.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fineweb_shards.buckets.connection import Connection
from fineweb_shards.buckets.errors import PreconditionError
from fineweb_shards.errors import ChangedError
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import TransientError
from fineweb_shards.system.shared_memory import mmap_buffer

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

_PART_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20


class Ranges:
    """An object that is read by ranges. Threads may share it. With an `etag`, every range is of the object
    with that ETag, or ChangedError is raised. `size_bytes` is what is known of its size."""

    def __init__(
        self, connection: Connection, name: str, etag: str | None = None, size_bytes: int = 0
    ) -> None:
        self.size_bytes = size_bytes
        self._connection = connection
        self._name = name
        self._etag = etag

    def fetch(self, begin: int, end: int) -> memoryview:
        """Return the bytes of a range, all of them."""
        if begin >= end:
            return memoryview(b"")
        buffer = mmap_buffer(end - begin)
        starts = range(begin, end, _PART_BYTES)
        parts = [
            partial(self._fetch_part, start, min(start + _PART_BYTES, end), buffer[start - begin :])
            for start in starts
        ]
        others = [in_background(part) for part in parts[1:]]
        parts[0]()
        for other in others:
            other.result()
        return buffer

    def _fetch_part(self, begin: int, end: int, target: memoryview) -> None:
        try:
            get = partial(self._get, begin, end, target)
            self._connection.call(self._name, get, answers=PreconditionError)
        except PreconditionError:
            raise ChangedError(
                f"{self._connection.address.child(self._name)}: the object was replaced while it was being "
                "read.",
                "Restore the old one, or start over with what is there now: another --out, or --fresh.",
            ) from None

    def _get(self, begin: int, end: int, target: memoryview, store: ObjectStore, key: str) -> None:
        """Read one answer into `target`."""
        import obstore

        options: GetOptions = {"range": (begin, end)}
        if self._etag:
            options["if_match"] = f'"{self._etag}"'
        answer = obstore.get(store, key, options=options)
        url, size = self._connection.address.child(self._name), answer.meta["size"]
        if size < end:
            raise self._connection.refusal(
                f"{url}: it has {size:,} bytes, and those up to {end:,} are needed.", "Check the object."
            )
        received = 0
        for chunk in answer.stream(_CHUNK_BYTES):
            if received + len(chunk) > end - begin:
                raise TransientError(f"{url}: more than the {end - begin:,} bytes of the range")
            target[received : received + len(chunk)] = chunk
            received += len(chunk)
            self._connection.retrier.observer.add_fetched(len(chunk))
        if received != end - begin:
            raise TransientError(f"{url}: {received:,} of {end - begin:,} bytes")
