"""A folder in a bucket: list, read and write its objects, across outages.

Every method tries again what may pass (5xx, 429, broken connections, silence) for at most
`max_outage_seconds`, and reports the wait to the observer. What no retry would change is an error with the
next step. An object is visible when all of it is there, never before: so a reader never sees half of one.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fineweb_shards.errors import InputError, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.storage.bucket_address import BucketAddress
from fineweb_shards.storage.bucket_conditions import (
    DOES_NOT_HOLD,
    Conditions,
    probe_store,
    put,
    put_if,
    read_object,
)
from fineweb_shards.storage.bucket_credentials import require_obstore
from fineweb_shards.storage.bucket_errors import ConflictError, MissingError, is_without_reason
from fineweb_shards.storage.bucket_requests import Connection, ObjectInfo, Ranges, Version, plain_etag
from fineweb_shards.storage.bucket_uploads import (
    UploadFile,
    abort_abandoned_uploads,
    part_bytes_for,
    parts_at_once,
    wait_for_upload,
)
from fineweb_shards.storage.byte_source import ByteSource, open_in_order
from fineweb_shards.storage.place import HubRef, InputFile, Place
from fineweb_shards.system.background import map_in_background
from fineweb_shards.system.own_files import SMALL_BYTES, open_own
from fineweb_shards.system.retry import Retrier

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore


_LISTED_AT_ONCE = 1000
_DELETED_AT_ONCE = 16


class Bucket:
    """A folder in a bucket. Threads may share it, and it can be pickled: without credentials, which every
    process finds by itself, and without the observer.

    `refusal` is the class of error for what no retry would change: OutputError for a bucket that is written.
    """

    def __init__(
        self,
        url: str,
        max_outage_seconds: float = 3600,
        observer: Observer | None = None,
        *,
        refusal: type[ShardError] = InputError,
    ) -> None:
        self.address = BucketAddress.parse(url)
        require_obstore(self.address)
        self._max_outage_seconds = max_outage_seconds
        self._refusal = refusal
        self._conditions: Conditions | None = None  # not known yet
        self._connection = Connection(self.address, Retrier(max_outage_seconds, observer), refusal)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (str(self.address), self._max_outage_seconds, self._refusal, self._conditions)

    def __repr__(self) -> str:
        return f"Bucket({str(self.address)!r})"

    def reopened(self, observer: Observer | None) -> Bucket:
        """Return the same with another observer."""
        return _copy(
            str(self.address), self._max_outage_seconds, self._refusal, self._conditions, observer=observer
        )

    def hurried(self, max_outage_seconds: float, longest_answer_seconds: float) -> Bucket:
        """Return the same for somebody in a hurry, who waits no longer for an outage to end, nor for a server
        that says nothing. There is no second try after that."""
        bucket = _copy(str(self.address), max_outage_seconds, self._refusal, self._conditions)
        bucket._connection.longest_answer_seconds = longest_answer_seconds
        return bucket

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects in the folder, and in those below it; with `prefix`, only those in that one."""
        import obstore

        last: str | None = None  # after an interruption, the listing resumes after it
        pages: Iterator[Any] | None = None
        listed, landmark = 0, ""

        def next_page(store: ObjectStore, folder: str) -> Any:
            nonlocal pages
            if pages is None:
                pages = iter(obstore.list(store, folder or None, offset=last, chunk_size=_LISTED_AT_ONCE))
            try:
                return next(pages, ())
            except Exception:
                pages = None
                raise

        while page := self._connection.call(prefix, next_page):
            for found in page:
                last = found["path"]
                # A store that ignores where to begin would list the same for ever, or twice after an
                # interruption. Brent's way to find a cycle of any length: landmarks at powers of two.
                if last == landmark:
                    raise self._refusal(
                        f"{self.address}: the store lists an object twice ({last}).",
                        "It seems to ignore start-after or continuation-token. Use another server.",
                    )
                listed += 1
                if listed & (listed - 1) == 0:
                    landmark = last
                yield self._describe(found)

    def list_folder(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """Return the objects directly in the folder, or in that of `prefix`, not those in folders below."""
        import obstore

        found = self._connection.call(
            prefix, lambda store, folder: obstore.list_with_delimiter(store, folder or None)
        )
        return [self._describe(one) for one in found["objects"]]

    def head(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object; None if there is none."""
        try:
            return self._describe(self._connection.call(name, _head, answers=MissingError))
        except MissingError:
            return None

    def read(self, name: str, most_bytes: int = SMALL_BYTES) -> tuple[bytes, Version] | None:
        """Return a small object and its version; None if there is none. A larger one is refused."""
        return read_object(self._connection, name, most_bytes)

    def read_range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        """Return the bytes of a range, all of them. ChangedError if the object has another `etag` by now."""
        return bytes(Ranges(self._connection, name, etag).fetch(begin, end))

    def ranges(self, info: ObjectInfo) -> Ranges:
        """Return an object as something that is read by ranges, all of this version of it."""
        return Ranges(self._connection, info.name, info.etag)

    def open(self, name: str, info: ObjectInfo | None = None) -> BinaryIO:
        """Open an object as a file that can be read and searched, with a few ranges fetched ahead. `info` is
        what is known of it, if so; all reads are of that version of it, or raise ChangedError."""
        info = info or self._describe(self._connection.call(name, _head))
        return open_in_order(self.ranges(info).fetch, info.size_bytes)

    def probe(self) -> Conditions:
        """Find out once what the store makes of conditions, by writing a small object and deleting it; a
        refusal if it can't be read by ranges. Google's and Azure's stores are known."""
        if self._conditions is None:
            known = self.address.scheme != "s3"
            self._conditions = Conditions.QUOTED if known else probe_store(self._connection)
        return self._conditions

    @property
    def has_conditional_writes(self) -> bool:
        """Whether the store does a write whose condition holds, and no other. If not, `write` looks before it
        writes, and a second writer in that moment is not noticed."""
        return self.probe() is not Conditions.NONE

    def write(self, name: str, data: bytes, *, replaces: Version | None) -> Version:
        """Write a small object if it still has the version `replaces`, or, with None, if there is none yet.

        ConflictError if somebody else has written it. If an answer is lost, the next try meets what the first
        one has written; so two writers must not write the same content: put something of the run into it.
        """
        if not self.has_conditional_writes:
            self._check_version(name, replaces)
            return self.overwrite(name, data)
        mode: PutMode = "create" if replaces is None else self.probe().replacing(replaces)
        try:
            return put_if(self._connection, name, data, mode)
        except DOES_NOT_HOLD:
            raise self._conflict(name) from None

    def overwrite(self, name: str, data: bytes) -> Version:
        """Write a small object, whatever is there."""
        return self._connection.call(name, partial(put, data, "overwrite"))

    def upload(self, path: Path, name: str) -> Version:
        """Write a local file of any size as an object, in parts if it is large. It is visible when all of it
        is there. If anything goes wrong on the way, the parts are given up."""
        with open_own(path, "rb") as file:
            return self.upload_file(file, os.fstat(file.fileno()).st_size, name)

    def upload_file(self, file: BinaryIO, size: int, name: str) -> Version:
        """Write an open file of `size` bytes as an object, like `upload`."""
        send = partial(self._send, file, size)
        version = self._connection.call(name, send, for_upload=True)
        found = self._describe(self._connection.call(name, _head))
        if found.size_bytes != size:
            raise self._refusal(
                f"{self.address.child(name)} has {found.size_bytes:,} bytes after an upload of {size:,}.",
                "The file was changed meanwhile, or somebody else has written the object.",
            )
        return version

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, several at once and in any order; it is no error if one is not there."""
        # A request for each: not every store knows the one that deletes many.
        for _ in map_in_background(self._delete_one, names, _DELETED_AT_ONCE):
            pass

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> int | None:
        """Give up the uploads in the folder that a killed run has left unfinished, if their names are ours:
        their parts are invisible, and cost money. Return their number; None if nobody here can tell, because
        obstore can't list them: it needs S3 and boto3. Elsewhere a lifecycle rule of the bucket does it.

        Nobody else may be writing there: a running upload is given up as well.
        """
        return abort_abandoned_uploads(self.address, is_ours, self._refusal)

    def _send(self, file: BinaryIO, size_bytes: int, store: ObjectStore, key: str) -> Version:
        """Upload a file from its beginning."""
        import obstore

        file.seek(0)
        source = UploadFile(file, size_bytes)
        part_bytes = part_bytes_for(size_bytes)
        upload = partial(
            obstore.put,
            store,
            key,
            cast(BinaryIO, source),  # of which obstore only reads, seeks and tells
            chunk_size=part_bytes,
            max_concurrency=parts_at_once(part_bytes),
        )
        try:
            answer = wait_for_upload(upload, source, self.address, self._connection.retrier.observer)
        except OSError:
            if source.failure is not None:  # obstore passes on its text only
                raise source.failure from None
            raise
        return Version.of(answer)

    def _delete_one(self, name: str) -> None:
        import obstore

        with contextlib.suppress(MissingError):
            self._connection.call(name, obstore.delete, answers=MissingError)

    def _describe(self, found: Any) -> ObjectInfo:
        return ObjectInfo(
            self.address.name_of(found["path"]),
            found["size"],
            plain_etag(found["e_tag"]),
            found["last_modified"].timestamp(),
        )

    def _conflict(self, name: str) -> ConflictError:
        return ConflictError(f"{self.address.child(name)}: somebody else has written it meanwhile.")

    def _check_version(self, name: str, replaces: Version | None) -> None:
        """Look, for a store without conditional writes, whether an object is still what it was."""
        found = self.read(name)
        now = None if found is None else plain_etag(found[1].etag)
        if now != (None if replaces is None else plain_etag(replaces.etag)):
            raise self._conflict(name)


def _copy(
    url: str,
    max_outage_seconds: float,
    refusal: type[ShardError],
    conditions: Conditions | None,
    *,
    observer: Observer | None = None,
) -> Bucket:
    bucket = Bucket(url, max_outage_seconds, observer, refusal=refusal)
    bucket._conditions = conditions
    return bucket


def _head(store: ObjectStore, key: str) -> ObjectMeta:
    import obstore

    try:
        return obstore.head(store, key)
    except obstore.exceptions.BaseError as error:
        if not is_without_reason(error):
            raise
        return obstore.get(store, key).meta  # the answer to a GET has a body, which says why


# The objects of the input: every range is of the object that was listed, by its ETag.

# Stands for the ETag of an object in a store that gives none.
_BY_DATE = "modified "


def content_hash(info: ObjectInfo) -> str:
    """Return what shows that an object was replaced."""
    return info.etag or f"{_BY_DATE}{info.modified_seconds}"


class BucketPlace(Place):
    """Objects in buckets, with one client for each bucket. Nothing is kept of an object."""

    is_remote = True

    def __init__(
        self, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
    ) -> None:
        super().__init__(hub, max_outage_seconds, observer)
        self._buckets: dict[str, Bucket] = {}

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        bucket, info = self._find(file)
        return ByteSource(bucket.ranges(info).fetch, info.size_bytes, self.retrier.observer)

    def stream(self, file: InputFile) -> BinaryIO:
        bucket, info = self._find(file)
        return bucket.open(info.name, info)

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        """Return an object's bucket, and what the listing said of it."""
        scheme, _, rest = file.path.partition("://")
        name, _, key = rest.partition("/")
        url = f"{scheme}://{name}"
        bucket = self._buckets.get(url)
        if bucket is None:
            bucket = self._buckets[url] = Bucket(url, self.max_outage_seconds, self.retrier.observer)
        etag = "" if file.content_hash.startswith(_BY_DATE) else file.content_hash
        return bucket, ObjectInfo(key, file.size_bytes, etag, 0.0)
