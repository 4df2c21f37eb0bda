"""Send requests to a bucket: with retries for what may pass, and our own errors for the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fineweb_shards.errors import ChangedError, NetworkError, ShardError
from fineweb_shards.storage.bucket_address import BucketAddress
from fineweb_shards.storage.bucket_credentials import get_store, note_answer
from fineweb_shards.storage.bucket_errors import AnswerError, PreconditionError, translate
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Retrier, TransientError
from fineweb_shards.system.shared_memory import mmap_buffer
from fineweb_shards.units import show_seconds

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


Result = TypeVar("Result")


class Connection:
    """A folder in a bucket, and how requests about it are sent. Threads may share it."""

    def __init__(self, address: BucketAddress, retrier: Retrier, refusal: type[ShardError]) -> None:
        self.address = address
        self.retrier = retrier
        self.refusal = refusal
        self.longest_answer_seconds: float | None = None  # that is waited for; None: as stores.py says

    def call(
        self,
        name: str,
        action: Callable[[ObjectStore, str], Result],
        *,
        answers: type[AnswerError] | tuple[type[AnswerError], ...] = (),
        for_upload: bool = False,
    ) -> Result:
        """Return what `action` returns for the store and an object's full name in it. Refusals that are
        `answers` to the caller are raised as they are, all others as errors for a user."""
        key = self.address.key(name)

        def attempt() -> Result:
            store = get_store(self.address, for_upload=for_upload)
            from obstore.exceptions import BaseError

            try:
                result = self._call_interruptibly(partial(action, store, key))
            except (BaseError, FileNotFoundError) as error:  # the second one is a missing object
                raise translate(error, self.address, name, self.refusal) from None
            note_answer(self.address)
            return result

        try:
            return self.retrier.call(attempt)
        except AnswerError as answer:
            if isinstance(answer, answers):
                raise
            raise answer.refusal from None

    def _call_interruptibly(self, action: Callable[[], Result]) -> Result:
        """Call a function of obstore. Signals are handled by the main thread, but not inside of obstore,
        where a server that says nothing would keep Ctrl-C waiting; so there another thread calls it."""
        longest = self.longest_answer_seconds
        if longest is None and threading.current_thread() is not threading.main_thread():
            return action()
        future = in_background(action)
        if futures.wait([future], longest).not_done:
            assert longest is not None
            raise NetworkError(f"{self.address}: no answer within {show_seconds(longest)}.")
        return future.result()


# Read an object by ranges, each with retries; large ones over several connections at once.
#
# A store gives one connection 50 to 100 MB/s, and many give less.

_PART_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20


class Ranges:
    """An object that is read by ranges. Threads may share it. With an `etag`, every range is of the object
    with that ETag, or ChangedError is raised."""

    def __init__(self, connection: Connection, name: str, etag: str | None = None) -> None:
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


# What is known about an object: its description in a listing, and the version that a write replaces.


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object. `name` is relative to the address under which it was found."""

    name: str
    size_bytes: int
    etag: str  # without quotes; empty if the store gives none
    modified_seconds: float


@dataclass(frozen=True, slots=True)
class Version:
    """Which content an object has, for `Bucket.write`. Stores compare one of the two values, or both."""

    etag: str | None
    version: str | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Version:
        """Return the version in an answer of obstore."""
        return cls(answer["e_tag"], answer["version"])


def plain_etag(etag: str | None) -> str:
    """Return an ETag without quotes: some stores have them in listings, and some only in answers."""
    return etag.removeprefix("W/").strip('"') if etag else ""
