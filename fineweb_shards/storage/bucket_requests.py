"""Send requests to a bucket: retry transient failures, and translate the others into our own errors.

Small objects are written conditionally. S3, Google and Azure support that. Among the S3-compatible stores, some refuse
such a request (501), some ignore the condition, and some refuse even one that holds, because they compare the ETag
without the quotes that they have sent: Ceph's RGW does (16.2, tested), and DigitalOcean's Spaces
(slatedb/slatedb#1818). versitygw had the same symptom (versity/versitygw#1710). So `probe_store` tests each store.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fineweb_shards.errors import ChangedError, NetworkError, ShardError
from fineweb_shards.events import Event
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress
from fineweb_shards.storage.bucket_client import (
    AnswerError,
    MissingError,
    PreconditionError,
    get_store,
    note_answer,
    translate,
)
from fineweb_shards.storage.place import plain_etag
from fineweb_shards.system.background import in_background
from fineweb_shards.system.own_files import SMALL_BYTES, WORK_FOLDER
from fineweb_shards.system.retry import Retrier, TransientError
from fineweb_shards.system.shared_memory import mmap_buffer
from fineweb_shards.units import show_seconds

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode, UpdateVersion
    from obstore.store import ObjectStore

Result = TypeVar("Result")

# A store gives one connection at most 50 to 100 MB/s: large ranges are fetched over several at once.
_PART_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20
Answers = tuple[type[AnswerError], ...]
DOES_NOT_HOLD = (PreconditionError, MissingError)  # answers to a write whose condition does not hold


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's metadata. `name` is relative to the folder."""

    name: str
    size_bytes: int
    etag: str  # without quotes; empty if the store gives none
    modified_seconds: float


BY_DATE = "modified "  # prefix of the date that replaces a missing ETag


def content_hash(info: ObjectInfo) -> str:
    """Return a text that differs once an object has been replaced."""
    return info.etag or f"{BY_DATE}{info.modified_seconds}"


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object, for `Bucket.write`. Stores compare one of the two values, or both."""

    etag: str | None
    version: str | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Version:
        return cls(answer["e_tag"], answer["version"])


class Connection:
    """Sends requests about a folder in a bucket; `refusal` is the class of permanent errors. Threads may share it."""

    def __init__(self, address: BucketAddress, retrier: Retrier, refusal: type[ShardError]) -> None:
        self.address = address
        self.retrier = retrier
        self.refusal = refusal
        self.longest_answer_seconds: float | None = None  # a limit below the client's own timeout

    def call(
        self, name: str, action: Callable[[ObjectStore, str], Result], answers: Answers = (), for_upload: bool = False
    ) -> Result:
        """Call `action` with the store and an object's key, and return its result. Refusals that the caller expects
        (`answers`) are raised unchanged, all others as errors for the user."""
        key = self.address.key(name)

        def attempt() -> Result:
            store, longest = get_store(self.address, for_upload=for_upload), self.longest_answer_seconds
            from obstore.exceptions import BaseError

            try:
                if longest is None and threading.current_thread() is not threading.main_thread():
                    result = action(store, key)
                else:
                    # In the background: inside obstore Python can't handle signals, so that in the main thread a silent
                    # server would block Ctrl-C.
                    future = in_background(partial(action, store, key))
                    if futures.wait([future], longest).not_done:
                        raise NetworkError(f"{self.address}: no answer within {show_seconds(longest or 0)}.")
                    result = future.result()
            except (BaseError, FileNotFoundError) as error:  # FileNotFoundError: a missing object
                raise translate(error, self.address, name, self.refusal) from None
            note_answer(self.address)
            return result

        try:
            return self.retrier.call(attempt)
        except AnswerError as answer:
            if isinstance(answer, answers):
                raise
            raise answer.refusal from None

    def read(self, name: str, most_bytes: int = SMALL_BYTES) -> tuple[bytes, Version] | None:
        """Return a small object and its version; None if it doesn't exist. `refusal` for one over `most_bytes`."""
        import obstore

        def get(store: ObjectStore, key: str) -> tuple[bytes, Version]:
            answer = obstore.get(store, key)
            if (size := answer.meta["size"]) > most_bytes:
                raise self.refusal(
                    f"{self.address.child(name)}: {size:,} bytes long; an object of this name that "
                    f"fineweb-shards wrote has at most {most_bytes:,}.",
                    "Find out where it came from, then move it away, or choose another address.",
                )
            data = bytes(answer.bytes())
            self.retrier.observer.add_fetched(len(data))
            return data, Version.of(answer.meta)

        try:
            return self.call(name, get, answers=(MissingError,))
        except MissingError:
            return None

    def fetch(self, name: str, etag: str | None, begin: int, end: int) -> memoryview:
        """Return all bytes of a range; ChangedError if the object's ETag is not `etag`."""
        if begin >= end:
            return memoryview(b"")
        buffer = mmap_buffer(end - begin)
        part = partial(self._fetch_part, name, etag)
        starts = range(begin, end, _PART_BYTES)
        parts = [partial(part, at, min(at + _PART_BYTES, end), buffer[at - begin :]) for at in starts]
        others = [in_background(part) for part in parts[1:]]
        parts[0]()
        for other in others:
            other.result()
        return buffer

    def _fetch_part(self, name: str, etag: str | None, begin: int, end: int, target: memoryview) -> None:
        import obstore

        url, size = self.address.child(name), end - begin
        options: GetOptions = {"range": (begin, end)}
        is_web = self.address.scheme in WEB_SCHEMES
        if etag and not is_web and not etag.startswith(BY_DATE):
            options["if_match"] = f'"{etag}"'
        hint = "Restore the old one, or start over with the new one: another --out, or --fresh."
        changed = ChangedError(f"{url}: the object was replaced while it was being read.", hint)

        def get(store: ObjectStore, key: str) -> None:
            answer = obstore.get(store, key, options=options)
            if is_web and content_hash(self.describe(answer.meta)) != etag:
                raise changed
            if (found := answer.meta["size"]) < end:
                problem = f"it has only {found:,} of the {end:,} bytes that are needed"
                raise self.refusal(f"{url}: {problem}.", "Check the object.")
            received = 0
            for chunk in answer.stream(_CHUNK_BYTES):
                if received + len(chunk) > size:
                    raise TransientError(f"{url}: more than the {size:,} bytes of the range")
                target[received : received + len(chunk)] = chunk
                received += len(chunk)
                self.retrier.observer.add_fetched(len(chunk))
            if received != size:
                raise TransientError(f"{url}: {received:,} of {size:,} bytes")

        try:
            self.call(name, get, answers=(PreconditionError,))
        except PreconditionError:
            raise changed from None

    def describe(self, found: Any) -> ObjectInfo:
        etag, modified = plain_etag(found["e_tag"]), found["last_modified"].timestamp()
        return ObjectInfo(self.address.name_of(found["path"]), found["size"], etag, modified)

    def put(self, name: str, data: bytes, mode: PutMode, answers: Answers = DOES_NOT_HOLD) -> Version:
        """Write a small object conditionally, in one request; raise one of `answers` if the store refuses.

        No two writers may write the same content: after a lost answer it tells a retry that its write succeeded.
        """
        import obstore

        tries = 0

        def try_to_put(store: ObjectStore, key: str) -> Version:
            nonlocal tries
            tries += 1
            return Version.of(obstore.put(store, key, data, mode=mode, use_multipart=False))

        try:
            return self.call(name, try_to_put, answers=answers)
        except DOES_NOT_HOLD:
            found = self.read(name, max(SMALL_BYTES, len(data))) if tries > 1 else None
            if found is None or found[0] != data:
                raise
            return found[1]  # the write succeeded, but its answer was lost

    def overwrite(self, name: str, data: bytes) -> Version:
        return self.put(name, data, "overwrite", answers=())

    def delete_one(self, name: str) -> None:
        import obstore

        with contextlib.suppress(MissingError):
            self.call(name, obstore.delete, answers=(MissingError,))


# Testing how a store handles conditional writes and ranges, before anything depends on it. It must accept a write whose
# condition holds, and refuse one whose condition doesn't.

# In the work folder, so that a leftover of a killed run is recognized as ours.
PROBE_PREFIX = f"{WORK_FOLDER}/probe-"
_IMPOSSIBLE = Version('"00000000000000000000000000000000"', None)


class Conditions(Enum):
    """How a store compares the ETag in the condition of a write."""

    QUOTED = "quoted"  # as it was sent, which is the standard
    UNQUOTED = "unquoted"
    NONE = "none"  # not at all, or wrongly

    def replacing(self, version: Version) -> UpdateVersion:
        """Return obstore's condition that an object still has this version; obstore rejects empty values."""
        condition: UpdateVersion = {}
        if version.etag is not None:
            condition["e_tag"] = plain_etag(version.etag) if self is Conditions.UNQUOTED else version.etag
        if version.version is not None:
            condition["version"] = version.version
        return condition


def probe_store(connection: Connection) -> Conditions:
    """Return how the store compares conditions, after writing, reading and deleting a temporary object. `refusal` if it
    can't serve ranges, which would otherwise show only after the first upload."""
    name = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    created = _try_to_put(connection, name, "create")
    try:
        conditions = _find_conditions(connection, name, created)
        data = secrets.token_bytes(8)
        version = connection.overwrite(name, data)
        try:
            is_right = connection.fetch(name, plain_etag(version.etag), 2, 5) == data[2:5]
        except ChangedError:  # although the store has just given this ETag
            is_right = False
        if not is_right:
            raise connection.refusal(  # noqa: TRY301
                f"{connection.address}: the store does not return the right bytes for a range of an object.",
                "Check the address and any proxy on the way, or use another server.",
            )
    except connection.refusal:  # not after an outage, which this would wait for again
        _delete_probe(connection, name)
        raise
    _delete_probe(connection, name)
    return conditions


def _find_conditions(connection: Connection, name: str, created: Version | None) -> Conditions:
    if created is None or created.etag is None or _try_to_put(connection, name, "create") is not None:
        return Conditions.NONE
    for conditions in (Conditions.QUOTED, Conditions.UNQUOTED):
        if _try_to_put(connection, name, conditions.replacing(_IMPOSSIBLE)) is not None:
            return Conditions.NONE
        if _try_to_put(connection, name, conditions.replacing(created)) is not None:
            return conditions
    return Conditions.NONE


def _try_to_put(connection: Connection, name: str, mode: PutMode) -> Version | None:
    """Write new content conditionally; None if the store refuses."""
    try:
        return connection.put(name, secrets.token_bytes(8), mode, (AnswerError,))
    except AnswerError:
        return None


def _delete_probe(connection: Connection, name: str) -> None:
    try:
        connection.delete_one(name)
    except connection.refusal as error:  # a bucket that forbids deleting is still fit for writing
        text = f"{connection.address.child(name)} is left over: {error}"
        connection.retrier.observer.tell(Event("note", text))
