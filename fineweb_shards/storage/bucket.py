"""A folder in a bucket: list, read and write its objects, across outages.

Every method retries transient failures (5xx, 429, broken connections, silence) for at most `max_outage_seconds`, and
reports the wait to the observer. A permanent failure raises an error with the next step. An object becomes visible only
once it is complete, so a reader never sees half of one.

Files on web servers (`https://host/folder/file.jsonl.zst`) are read by ranges, like objects. A server can't list its
files, so the user names each one. Some servers ignore conditional requests, and those with weak ETags refuse them, so
every answer's version is compared instead (bucket_requests.py).
"""

from __future__ import annotations

import builtins
import errno
import glob
import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

from fineweb_shards.errors import InputError, ShardError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress
from fineweb_shards.storage.bucket_client import SETTINGS, ConflictError, MissingError, Refusal
from fineweb_shards.storage.bucket_requests import (
    DOES_NOT_HOLD,
    Conditions,
    Connection,
    ObjectInfo,
    Version,
    content_hash,
    probe_store,
)
from fineweb_shards.storage.place import ByteSource, InputFile, Place, open_in_order, plain_etag
from fineweb_shards.system.background import in_background, map_in_background
from fineweb_shards.system.own_files import open_own
from fineweb_shards.system.retry import Retrier
from fineweb_shards.system.shell_commands import install_command

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore

_LISTED_AT_ONCE = 1000
_DELETED_AT_ONCE = 16


class Bucket(Connection):
    """A folder in a bucket. Threads may share it. Pickling drops the observer and the credentials, which every process
    looks up itself."""

    def __init__(
        self,
        url: str,
        max_outage_seconds: float = 3600,
        observer: Observer | None = None,
        *,
        refusal: type[ShardError] = InputError,
        conditions: Conditions | None = None,
    ) -> None:
        super().__init__(self.parse(url), Retrier(max_outage_seconds, observer), refusal)
        if importlib.util.find_spec("obstore") is None:
            hint = f"Install it: {install_command('obstore')}"
            raise UsageError(f"{self.address}: object stores and web servers need the package obstore.", hint)
        self._conditions = conditions  # None: not known yet

    @staticmethod
    def parse(url: str) -> BucketAddress:
        return BucketAddress.parse(url)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._make, (self.retrier.max_outage_seconds,)

    @property
    def _make(self) -> partial[Bucket]:
        return partial(Bucket, str(self.address), refusal=self.refusal, conditions=self._conditions)

    def reopened(self, observer: Observer | None) -> Bucket:
        bucket = self._make(self.retrier.max_outage_seconds, observer)
        bucket.longest_answer_seconds = self.longest_answer_seconds
        return bucket

    def hurried(self, max_outage_seconds: float, longest_answer_seconds: float) -> Bucket:
        """Return a copy that gives up sooner: on an outage, and, without a retry, on a server that doesn't answer."""
        bucket = self._make(max_outage_seconds)
        bucket.longest_answer_seconds = longest_answer_seconds
        return bucket

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects in the folder `prefix`, recursively."""
        import obstore

        last: str | None = None  # where the listing resumes after an interruption
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

        while page := self.call(prefix, next_page):
            for found in page:
                last = found["path"]
                # A store that ignores the offset would repeat itself for ever, or once after an interruption.
                # Brent's algorithm finds a cycle of any length: landmarks at powers of two.
                if last == landmark:
                    hint = "It seems to ignore start-after or continuation-token. Use another server."
                    raise self.refusal(f"{self.address}: the store lists an object twice ({last}).", hint)
                listed += 1
                if listed & (listed - 1) == 0:
                    landmark = last
                yield self.describe(found)

    def list_folder(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """Return the objects directly in the folder `prefix`, not recursively."""
        import obstore

        found = self.call(prefix, lambda store, folder: obstore.list_with_delimiter(store, folder or None))
        return [self.describe(one) for one in found["objects"]]

    def head(self, name: str) -> ObjectInfo | None:
        try:
            return self.describe(self.call(name, _head, answers=(MissingError,)))
        except MissingError:
            return None

    def read_range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        """Return all bytes of a range. ChangedError if the object's ETag is no longer `etag`."""
        return bytes(self.fetch(name, etag, begin, end))

    def open(self, name: str, info: ObjectInfo | None = None) -> BinaryIO:
        """Open an object as a seekable file, with a few ranges prefetched. Every read returns bytes of the version in
        `info` (by default the current one), or raises ChangedError."""
        info = info or self.describe(self.call(name, _head))
        return open_in_order(partial(self.fetch, info.name, info.etag), info.size_bytes)

    def probe(self) -> Conditions:
        """Test once, with a small temporary object, how the store handles conditional writes; `refusal` if it can't
        serve ranges. Google's and Azure's stores need no test."""
        if self._conditions is None:
            known = self.address.scheme != "s3"
            self._conditions = Conditions.QUOTED if known else probe_store(self)
        return self._conditions

    @property
    def has_conditional_writes(self) -> bool:
        """Whether the store honours conditional writes. If not, `write` checks before it writes, and misses a second
        writer in between."""
        return self.probe() is not Conditions.NONE

    def write(self, name: str, data: bytes, *, replaces: Version | None) -> Version:
        """Write a small object if its version is still `replaces`, or, with None, if it doesn't exist yet.

        ConflictError if somebody else has written it. After a lost answer, the retry finds what the first attempt wrote
        and takes it for its own, so no two writers may write the same content: include something of the run.
        """
        conflict = ConflictError(f"{self.address.child(name)}: somebody else has written it meanwhile.")
        if not self.has_conditional_writes:
            found = self.read(name)
            now = None if found is None else plain_etag(found[1].etag)
            if now != (None if replaces is None else plain_etag(replaces.etag)):
                raise conflict
            return self.overwrite(name, data)
        mode: PutMode = "create" if replaces is None else self.probe().replacing(replaces)
        try:
            return self.put(name, data, mode)
        except DOES_NOT_HOLD:
            raise conflict from None

    def upload(self, path: Path, name: str) -> Version:
        """Upload a local file of any size, in parts if it is large. A failed upload is aborted, parts included."""
        with open_own(path, "rb") as file:
            return self.upload_file(file, os.fstat(file.fileno()).st_size, name)

    def upload_file(self, file: BinaryIO, size: int, name: str) -> Version:
        version = self.call(name, partial(self._send, file, size), for_upload=True)
        found = self.describe(self.call(name, _head))
        if found.size_bytes != size:
            raise self.refusal(
                f"{self.address.child(name)} has {found.size_bytes:,} bytes after an upload of {size:,}.",
                "The file was changed meanwhile, or somebody else has written the object.",
            )
        return version

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, several at once and in any order; missing ones are ignored."""
        # One request each: not every store supports bulk deletes.
        for _ in map_in_background(self.delete_one, names, _DELETED_AT_ONCE):
            pass

    def _send(self, file: BinaryIO, size_bytes: int, store: ObjectStore, key: str) -> Version:
        """Upload a file, and report a stall to the observer: obstore notices a silent server only after minutes,
        because sending one part may take as long."""
        import obstore

        file.seek(0)
        source = UploadFile(file, size_bytes)
        part_bytes, parts_at_once = plan_parts(size_bytes)
        put = partial(obstore.put, chunk_size=part_bytes, max_concurrency=parts_at_once)
        uploaded = in_background(partial(put, store, key, cast(BinaryIO, source)))  # it only calls read, seek and tell
        observer, is_told = self.retrier.observer, False
        try:
            while futures.wait([uploaded], _LOOK_SECONDS).not_done:
                is_silent = time.monotonic() - source.last_read > _SILENT_SECONDS
                if is_silent != is_told:
                    is_told = is_silent
                    since = time.strftime("%H:%M", time.localtime(time.time() - _SILENT_SECONDS))
                    reason = f"{self.address}: an upload makes no progress"
                    text = f"waiting for the network since {since} ({reason})"
                    observer.set_wait("network", text if is_silent else None)
            return Version.of(uploaded.result())
        except OSError:
            if source.failure is not None:  # obstore passes on its text only
                raise source.failure from None
            raise
        finally:
            if is_told:
                observer.set_wait("network", None)


def _head(store: ObjectStore, key: str) -> ObjectMeta:
    import obstore

    try:
        return obstore.head(store, key)
    except obstore.exceptions.BaseError as error:
        found = Refusal.of(error)
        if found.status not in (400, 403) or found.code:
            raise
        return obstore.get(store, key).meta  # the answer to a GET has a body, which says why


# Uploading a local file

_SMALLEST_PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000  # S3's limit
UPLOAD_MEMORY_BYTES = 64 * 2**20  # for the parts in flight, unless a single one is larger
_MIB = 2**20
_SILENT_SECONDS = 30.0  # without progress: shown as a wait
_LOOK_SECONDS = 1.0


def plan_parts(size_bytes: int) -> tuple[int, int]:
    """Return the size of the parts, whole MiB and as small as 10,000 parts allow; and how many may be in flight while
    one more is being read."""
    needed = -(-size_bytes // _MOST_PARTS)
    part_bytes = max(_SMALLEST_PART_BYTES, -(-needed // _MIB) * _MIB)
    return part_bytes, max(1, UPLOAD_MEMORY_BYTES // part_bytes - 1)


class UploadFile:
    """A file for obstore to read: exactly `size_bytes` bytes or an error, because obstore publishes whatever it has
    read up to the end, however short. Keeps the exception of a failed read (a signal's, for example), because obstore
    turns every exception into an OSError."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self.seek, self.tell = file.seek, file.tell
        self.last_read = time.monotonic()
        self.failure: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        self.last_read = time.monotonic()
        left = self._size_bytes - self._file.tell()
        wanted = left if size < 0 else min(size, left)
        try:
            data = self._file.read(wanted)
            if len(data) < wanted:
                raise OSError(errno.EIO, "it has become shorter during the upload")  # noqa: TRY301
        except BaseException as error:
            self.failure = error
            raise
        return data


class BucketPlace(Place):
    """Input in buckets and on web servers. The ETag ties ranges to the object that was listed; nothing is cached."""

    is_remote = True

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        bucket, info = self._find(file)
        return ByteSource(partial(bucket.fetch, info.name, info.etag), info.size_bytes)

    def stream(self, file: InputFile) -> BinaryIO:
        bucket, info = self._find(file)
        return bucket.open(info.name, info)

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        """Return an object's bucket or web server, and its metadata from the listing."""
        scheme, _, rest = file.path.partition("://")
        name, _, key = rest.partition("/")
        url, key = (file.path, parse_address(file.path).prefix) if is_web(file.path) else (f"{scheme}://{name}", key)
        bucket = open_remote(url, self.max_outage_seconds, self.retrier.observer)
        return bucket, ObjectInfo(key, file.size_bytes, file.content_hash, 0.0)


_EXAMPLE = "Name a single file, such as https://host/folder/file.jsonl.zst."
_ADDRESS = re.compile(r"(https?)://([^/?#@]+)/([^?#]+)", re.IGNORECASE)


def is_web(text: str) -> bool:
    return text.lower().startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES))


def parse_address(url: str) -> BucketAddress:
    """Parse the address of a file; UsageError if it is not valid."""
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise UsageError(
            f"The {scheme}:// address holds a password or a part after a question mark, which may be a signature: "
            "both end up in logs and manifests.",
            "Leave it out; or download the file first (curl -LO ADDRESS), and name the file.",
        )
    found = _ADDRESS.fullmatch(url)
    if found is None or url.endswith("/") or glob.has_magic(url):
        raise UsageError(f"{url}: a web server has files only, no folders and no patterns.", _EXAMPLE)
    address = BucketAddress(found[1].lower(), found[2])
    return address.child(unquote(found[3]))


class WebServer(Bucket):
    """A web server, used like a bucket: only `head` and reads by ranges work."""

    @staticmethod
    def parse(url: str) -> BucketAddress:
        address = parse_address(url)
        return BucketAddress(address.scheme, address.bucket)

    def head(self, name: str) -> ObjectInfo | None:
        """Return a file's metadata, after a test that the server sends ranges of it; None if there is no such file."""
        if (info := super().head(name)) is None:
            return None
        if not info.etag and not info.modified_seconds:
            problem = "the server gives neither an ETag nor a date for this file, so a change would go unnoticed"
            raise InputError(f"{self.address.child(name)}: {problem}.", SETTINGS[self.address.scheme])
        if info.size_bytes:
            self.fetch(name, content_hash(info), 0, 1)
        return info


def open_remote(url: str, max_outage_seconds: float = 3600, observer: Observer | None = None) -> Bucket:
    return (WebServer if is_web(url) else Bucket)(url, max_outage_seconds, observer)
