"""A folder in a bucket: list, read and write its objects, across outages.

Every method tries again what may pass (5xx, 429, broken connections, silence) for at most `max_outage_seconds`, and
reports the wait to the observer. What no retry would change is an error with the next step. An object is visible when
all of it is there, never before: so a reader never sees half of one.

Files on web servers (`https://host/folder/file.jsonl.zst`) are read like the objects of a bucket, by ranges. A server
has no list of its files, so each is named by itself. Not every server knows conditions, and one with a weak ETag
refuses them: so the version is compared in every answer (bucket_requests.py).
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
from fineweb_shards.storage.bucket_credentials import SETTINGS
from fineweb_shards.storage.bucket_errors import ConflictError, MissingError, Refusal
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
    """A folder in a bucket. Threads may share it, and it can be pickled: without credentials, which every process finds
    by itself, and without the observer."""

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
        self._max_outage_seconds = max_outage_seconds
        self._conditions = conditions  # None: not known yet

    @staticmethod
    def parse(url: str) -> BucketAddress:
        """Take the address apart; UsageError if it can't be one."""
        return BucketAddress.parse(url)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._make, (self._max_outage_seconds,)

    @property
    def _make(self) -> partial[Bucket]:
        return partial(Bucket, str(self.address), refusal=self.refusal, conditions=self._conditions)

    def reopened(self, observer: Observer | None) -> Bucket:
        """Return the same with another observer."""
        return self._make(self._max_outage_seconds, observer)

    def hurried(self, max_outage_seconds: float, longest_answer_seconds: float) -> Bucket:
        """Return the same for somebody in a hurry, who waits no longer for an outage to end, nor for a server that says
        nothing. There is no second try after that."""
        bucket = self._make(max_outage_seconds)
        bucket.longest_answer_seconds = longest_answer_seconds
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

        while page := self.call(prefix, next_page):
            for found in page:
                last = found["path"]
                # A store that ignores where to begin would list the same for ever, or twice after an interruption.
                # Brent's way to find a cycle of any length: landmarks at powers of two.
                if last == landmark:
                    hint = "It seems to ignore start-after or continuation-token. Use another server."
                    raise self.refusal(f"{self.address}: the store lists an object twice ({last}).", hint)
                listed += 1
                if listed & (listed - 1) == 0:
                    landmark = last
                yield self.describe(found)

    def list_folder(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """Return the objects directly in the folder, or in that of `prefix`, not those in folders below."""
        import obstore

        found = self.call(prefix, lambda store, folder: obstore.list_with_delimiter(store, folder or None))
        return [self.describe(one) for one in found["objects"]]

    def head(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object; None if there is none."""
        try:
            return self.describe(self.call(name, _head, answers=(MissingError,)))
        except MissingError:
            return None

    def read_range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        """Return the bytes of a range, all of them. ChangedError if the object has another `etag` by now."""
        return bytes(self.fetch(name, etag, begin, end))

    def open(self, name: str, info: ObjectInfo | None = None) -> BinaryIO:
        """Open an object as a file that can be read and searched, with a few ranges fetched ahead. `info` is what is
        known of it, if so; all reads are of that version of it, or raise ChangedError."""
        info = info or self.describe(self.call(name, _head))
        return open_in_order(partial(self.fetch, info.name, info.etag), info.size_bytes)

    def probe(self) -> Conditions:
        """Find out once what the store makes of conditions, by writing a small object and deleting it; a refusal if it
        can't be read by ranges. Google's and Azure's stores are known."""
        if self._conditions is None:
            known = self.address.scheme != "s3"
            self._conditions = Conditions.QUOTED if known else probe_store(self)
        return self._conditions

    @property
    def has_conditional_writes(self) -> bool:
        """Whether the store does a write whose condition holds, and no other. If not, `write` looks before it writes,
        and a second writer in that moment is not noticed."""
        return self.probe() is not Conditions.NONE

    def write(self, name: str, data: bytes, *, replaces: Version | None) -> Version:
        """Write a small object if it still has the version `replaces`, or, with None, if there is none yet.

        ConflictError if somebody else has written it. If an answer is lost, the next try meets what the first one has
        written; so two writers must not write the same content: put something of the run into it.
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
        """Write a local file of any size as an object, in parts if it is large. It is visible when all of it is there.
        If anything goes wrong on the way, the parts are given up."""
        with open_own(path, "rb") as file:
            return self.upload_file(file, os.fstat(file.fileno()).st_size, name)

    def upload_file(self, file: BinaryIO, size: int, name: str) -> Version:
        """Write an open file of `size` bytes as an object, like `upload`."""
        send = partial(self._send, file, size)
        version = self.call(name, send, for_upload=True)
        found = self.describe(self.call(name, _head))
        if found.size_bytes != size:
            raise self.refusal(
                f"{self.address.child(name)} has {found.size_bytes:,} bytes after an upload of {size:,}.",
                "The file was changed meanwhile, or somebody else has written the object.",
            )
        return version

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, several at once and in any order; it is no error if one is not there."""
        # A request for each: not every store knows the one that deletes many.
        for _ in map_in_background(self.delete_one, names, _DELETED_AT_ONCE):
            pass

    def _send(self, file: BinaryIO, size_bytes: int, store: ObjectStore, key: str) -> Version:
        """Upload a file. If it makes no progress for long, the observer hears of it: obstore would tell of a silent
        server only after minutes, because a part may take as long to be sent."""
        import obstore

        file.seek(0)
        source = UploadFile(file, size_bytes)
        part_bytes, parts_at_once = plan_parts(size_bytes)
        upload = partial(
            obstore.put,
            store,
            key,
            cast(BinaryIO, source),  # obstore only calls read, seek and tell
            chunk_size=part_bytes,
            max_concurrency=parts_at_once,
        )
        uploaded = in_background(upload)
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


# A local file on its way into a bucket: how large its parts are, and what went wrong while it was read.

_SMALLEST_PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000  # S3's limit
UPLOAD_MEMORY_BYTES = 64 * 2**20  # for the parts on their way, unless a single one is larger
_MIB = 2**20
_SILENT_SECONDS = 30.0  # without a part that was taken: shown as a wait
_LOOK_SECONDS = 1.0


def plan_parts(size_bytes: int) -> tuple[int, int]:
    """Return the size of the parts, whole MiB and as small as 10,000 parts allow; and how many are on their way at
    once, while one more is being read."""
    needed = -(-size_bytes // _MOST_PARTS)
    part_bytes = max(_SMALLEST_PART_BYTES, -(-needed // _MIB) * _MIB)
    return part_bytes, max(1, UPLOAD_MEMORY_BYTES // part_bytes - 1)


class UploadFile:
    """A file of `size_bytes` that obstore reads: all of them, or an error, because what obstore has read to its end is
    published, however short it is. Remembers what was raised by a read, a signal's exception for example: obstore turns
    every exception into an OSError."""

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
                raise OSError(errno.EIO, "it has become shorter while it was uploaded")  # noqa: TRY301
        except BaseException as error:
            self.failure = error
            raise
        return data


# The objects of the input: every range is of the object that was listed, by its ETag.


class BucketPlace(Place):
    """Objects in buckets. Nothing is kept of an object."""

    is_remote = True

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        bucket, info = self._find(file)
        fetch = partial(bucket.fetch, info.name, info.etag)
        return ByteSource(fetch, info.size_bytes)

    def stream(self, file: InputFile) -> BinaryIO:
        bucket, info = self._find(file)
        return bucket.open(info.name, info)

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        """Return an object's bucket, and what the listing said of it."""
        scheme, _, rest = file.path.partition("://")
        name, _, key = rest.partition("/")
        bucket = Bucket(f"{scheme}://{name}", self.max_outage_seconds, self.retrier.observer)
        return bucket, ObjectInfo(key, file.size_bytes, file.content_hash, 0.0)


_EXAMPLE = "Name a single file, such as https://host/folder/file.jsonl.zst."
_ADDRESS = re.compile(r"(https?)://([^/?#@]+)/([^?#]+)", re.IGNORECASE)


def is_web(text: str) -> bool:
    """Tell whether an input is on a web server."""
    return text.lower().startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES))


def parse_address(url: str) -> BucketAddress:
    """Take the address of a file apart; UsageError if it can't be one."""
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
    """A web server, as far as it can be used like a bucket: files are looked at and read by ranges."""

    @staticmethod
    def parse(url: str) -> BucketAddress:
        address = parse_address(url)
        return BucketAddress(address.scheme, address.bucket)

    def head(self, name: str) -> ObjectInfo | None:
        """Return what is known of a file, and try whether a part of it is sent; None if there is none."""
        info = super().head(name)
        if info is not None and not info.etag and not info.modified_seconds:
            problem = "the server tells neither an ETag nor a date of this file, so no change could be noticed"
            raise InputError(f"{self.address.child(name)}: {problem}.", SETTINGS[self.address.scheme])
        if info is not None and info.size_bytes:
            self.fetch(name, content_hash(info), 0, 1)
        return info


def open_remote(url: str, max_outage_seconds: float = 3600, observer: Observer | None = None) -> Bucket:
    """Open the bucket, or the web server, of an address."""
    return (WebServer if is_web(url) else Bucket)(url, max_outage_seconds, observer)


class WebPlace(BucketPlace):
    """Files on web servers."""

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        server = WebServer(file.path, self.max_outage_seconds, self.retrier.observer)
        return server, ObjectInfo(parse_address(file.path).prefix, file.size_bytes, file.content_hash, 0.0)
