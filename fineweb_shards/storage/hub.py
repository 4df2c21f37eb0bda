"""Files on the hub: read by ranges, or downloaded.

The hub redirects `/resolve/` to a signed CDN address, valid for about an hour. Because the hub limits requests, it is
asked only once per file; after that all requests go to the CDN, until it rejects the address. The token is sent only to
the hub. Every response is checked: status, range, length, and that it is still the same file. `HfFileSystem` won't do:
it accepts a 200 for a Range (2 GB into memory), misses a changed ETag, gives up after 23 s where an overnight run needs
to wait for an hour, and asks the hub for every range.

Downloads run a few files ahead of use, and are deleted after it. A file is fetched front to back, with a few ranges
prefetched, and its hash is checked at the end. A partial download is always a prefix of the file, and an interrupted
one continues after it. Whatever a crash has left on the disk, the hash decides.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import urllib3
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import build_hf_headers
from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationValueError, MaxRetryError, NewConnectionError

from fineweb_shards.errors import ChangedError, HubError
from fineweb_shards.events import Observer
from fineweb_shards.storage.hub_environment import is_git_hash
from fineweb_shards.storage.hub_session import (
    Quota,
    host_of,
    is_hub,
    open_session,
    request_error,
    send_get,
    short_name,
    status_error,
    translated_errors,
)
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import (
    TRANSIENT_STATUSES,
    ByteSource,
    HubRef,
    InputFile,
    Place,
    open_in_order,
    plain_etag,
)
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import lock_file, output_error
from fineweb_shards.system.own_files import is_plain_file, make_folder, open_own
from fineweb_shards.system.retry import Disk, Retrier, TransientError
from fineweb_shards.system.shared_memory import mmap_buffer

# A connection that trickles never times out, so one slower than this is closed.
_SLOWEST_BYTES_PER_SECOND = 4096
_READ_BYTES = 256 * 1024
# The address may lead to a host that is gone, or into a redirect loop.
_NO_ANSWER = (ConnectTimeoutError, NewConnectionError, MaxRetryError)
_PARTIAL_ENDING = ".part"
_SMALLEST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 2**18, 2**22
_FEWEST_BLOCKS = 64  # of a large file, so that a killed download leaves a prefix to continue from
_COPIED_BYTES = 2**20


AddressBook = dict[str, str]  # URLs on the hub to CDN addresses, which are secret because they are signed


class _BadAddressError(TransientError):
    """The address no longer works: ask the hub for another one."""


@dataclass(eq=False, repr=False)
class RemoteFile:
    """A file of a dataset at one commit. Threads may share it."""

    url: str  # on the hub
    size_bytes: int
    content_hash: str  # from the listing; the hub's ETag
    retrier: Retrier
    quota: Quota | None = None
    book: AddressBook = field(default_factory=dict)
    _refused: str = ""  # the last address that failed; other processes may still pass it on
    _etags: dict[str, str] = field(default_factory=dict)  # of the answers from each address
    _asking: Lock = field(default_factory=Lock)  # held during a request to the hub, as long as an outage lasts
    _lock: Lock = field(default_factory=Lock)  # held only briefly

    def learn(self, url: str) -> None:
        """Take over an address that another process has requested."""
        with self._lock:
            if url != self._refused:
                self.book.setdefault(self.url, url)

    def fetch(self, start: int, stop: int) -> memoryview:
        return self.retrier.call(partial(self._fetch_once, start, stop))

    def find_address(self) -> str:
        """Return the address of the bytes, known or from the hub; ChangedError if it reports another ETag twice."""
        if known := self.book.get(self.url):
            return known
        with self._asking:
            if known := self.book.get(self.url):  # another thread was faster
                return known
            for _ in range(2):
                with translated_errors(self.url):
                    found = get_hf_file_metadata(self.url, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
                if found.etag == self.content_hash:
                    self.book[self.url] = found.location
                    return found.location
        name = short_name(self.url)
        raise ChangedError(f"{name}: the file on the hub was {self.content_hash} and is {found.etag}.")

    def _fetch_once(self, start: int, stop: int) -> memoryview:
        address = self.find_address()
        try:
            with translated_errors(self.url):
                return self._get(address, start, stop)
        except _BadAddressError:
            with self._lock:
                self._refused = address
                if self.book.get(self.url) == address:  # else another thread has a new one already
                    del self.book[self.url]
            raise

    def _get(self, url: str, start: int, stop: int) -> memoryview:
        on_hub = is_hub(url)
        requested = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        headers = build_hf_headers(token=None if on_hub else False) | requested
        quota = self.quota if on_hub else None
        if quota is not None:
            quota.take(url)
        try:
            response = send_get(url, headers, constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=not on_hub)
        except LocationValueError:  # not a URL at all
            raise _BadAddressError(f"{host_of(url)}: not a valid address") from None
        except HTTPError as error:
            failure = request_error(url, error)
            if isinstance(error, _NO_ANSWER) and isinstance(failure, TransientError):
                failure = _BadAddressError(failure.reason, failure.retry_after_seconds, failure.advice)
            raise failure from None
        try:
            if quota is not None:
                quota.learn(url, response.status, response.headers)
            self._check(url, response.status, response.headers, start, stop)
            return self._read(url, response, stop - start)
        except HTTPError as error:
            raise request_error(url, error) from None
        finally:
            # Back to the pool only if fully read: the rest may be anything, even 2 GB.
            response.release_conn() if response.closed else response.close()

    def _check(self, url: str, status: int, headers: Mapping[str, str], start: int, stop: int) -> None:
        """Raise an error unless the answer is the requested range of the right file."""
        host, name = host_of(url), short_name(self.url)
        if status in TRANSIENT_STATUSES:
            raise status_error(url, status, headers)
        # Probably an expired signature or the wrong host; if not, asking the hub again will tell.
        if status != 206 or headers.get("Content-Range") != f"bytes {start}-{stop - 1}/{self.size_bytes}":
            raise _BadAddressError(f"{host}: status {status} for a range of {name}")
        # A CDN has ETags of its own, which can only be compared with each other; `find_address` has compared the hub's
        # with the listing.
        etag = plain_etag(headers.get("ETag"))
        known = self.content_hash if is_hub(url) else self._etags.setdefault(url, etag)
        if etag != known:
            self._etags.pop(url, None)
            raise _BadAddressError(f"{host}: an answer with another ETag for {name}")

    def _read(self, url: str, response: urllib3.BaseHTTPResponse, size: int) -> memoryview:
        buffer, received, begin = mmap_buffer(size), 0, time.monotonic()
        while received < size and (data := response.read1(_READ_BYTES, decode_content=False)):
            if received + len(data) > size:
                break
            buffer[received : received + len(data)] = data
            received += len(data)
            self.retrier.observer.add_fetched(len(data))
            seconds = time.monotonic() - begin
            if seconds > constants.HF_HUB_DOWNLOAD_TIMEOUT and received < _SLOWEST_BYTES_PER_SECOND * seconds:
                raise TransientError(f"{host_of(url)}: only {received:,} bytes in {seconds:.0f} s")
        if received != size:
            raise TransientError(f"{host_of(url)}: {received:,} of {size:,} bytes")
        return buffer


class HubPlace(Place):
    """Files of a dataset on the hub, by ranges. All files of a process share one address book."""

    is_remote = True

    def __init__(self, hub: HubRef | None, max_outage_seconds: int = 0, observer: Observer | None = None) -> None:
        super().__init__(hub, max_outage_seconds, observer)
        assert hub is not None, "files on the hub belong to a dataset"
        self._dataset = hub
        self._quota = Quota(Path(hub.work_folder), self.retrier.clock)
        self._files: dict[str, RemoteFile] = {}
        self._book: AddressBook = {}
        self._lock = Lock()
        open_session(self.retrier, self._quota)

    def reopened(self, observer: Observer | None) -> HubPlace:
        place = HubPlace(self.hub, self.max_outage_seconds, observer or self.retrier.observer)
        place._book = self._book
        return place

    def find(self, file: InputFile) -> RemoteFile:
        with self._lock:
            if file.path not in self._files:
                hub = self._dataset
                url = hf_hub_url(hub.dataset, file.name, repo_type="dataset", revision=hub.commit)
                facts = (url, file.size_bytes, file.content_hash)
                self._files[file.path] = RemoteFile(*facts, self.retrier, self._quota, self._book)
            return self._files[file.path]

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        remote = self.find(file)
        if address is not None:
            remote.learn(address)
        return ByteSource(remote.fetch, file.size_bytes)

    def stream(self, file: InputFile) -> BinaryIO:
        return open_in_order(self.find(file).fetch, file.size_bytes)

    def address_of(self, file: InputFile) -> str | None:
        return self.retrier.call(self.find(file).find_address)


class HubOnDiskPlace(LocalPlace):
    """Files on the hub, downloaded whole to this machine, in the order in which they will be needed."""

    def __init__(self, hub: HubRef | None, max_outage_seconds: int = 0, observer: Observer | None = None) -> None:
        super().__init__(hub, max_outage_seconds, observer)
        self._remote = HubPlace(hub, max_outage_seconds, observer)
        self._begun: dict[str, Future[None]] = {}
        self._last: Future[None] | None = None  # one download at a time, so that the first finishes soonest
        self._released: set[str] = set()

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        self._wait_for(file)
        return super().open(file)

    def stream(self, file: InputFile) -> BinaryIO:
        self._wait_for(file)
        return super().stream(file)

    def expect(self, files: Sequence[InputFile]) -> None:
        """Begin to download files, if not begun already."""
        for file in files:
            if file.path not in self._begun:
                self._last = self._begun[file.path] = in_background(partial(self._download, file, self._last))

    def has(self, file: InputFile) -> bool:
        begun = self._begun.get(file.path)
        return begun is not None and begun.done() and begun.exception() is None

    def release(self, files: Sequence[InputFile]) -> None:
        """Delete files that will not be read again, unless `keep_downloads` is set."""
        if self.hub is None or self.hub.keep_downloads:
            return
        for path in {file.path for file in files} - self._released:
            self._released.add(path)
            Path(path).unlink(missing_ok=True)
            Path(path + _PARTIAL_ENDING).unlink(missing_ok=True)

    def _wait_for(self, file: InputFile) -> None:
        self.expect([file])
        self._begun[file.path].result()

    def _download(self, file: InputFile, before: Future[None] | None) -> None:
        """Download a file, unless it exists. Waits while the disk is full."""
        if before is not None:
            before.exception()  # waits for its turn
        path = Path(file.path)
        if file.path in self._released:  # the run ended before it reached this file
            return
        if not (is_plain_file(path) and path.stat().st_size == file.size_bytes):
            disk = Disk(path.parent, self.max_outage_seconds, self.retrier.observer)
            self.retrier.call(partial(_download_once, file, self._remote, disk))


def _download_once(file: InputFile, remote: HubPlace, disk: Disk) -> None:
    path, size = Path(file.path), file.size_bytes
    partial_path = path.with_name(path.name + _PARTIAL_ENDING)
    if is_git_hash(file.content_hash):  # served by the hub itself, which limits requests: one block
        digest, block_bytes = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), size
    else:
        digest = hashlib.sha256()
        block_bytes = min(max(size // _FEWEST_BLOCKS, _SMALLEST_BLOCK_BYTES), _LARGEST_BLOCK_BYTES)
    try:
        make_folder(partial_path.parent)
        with (
            open_own(partial_path, "r+b", create=True, buffering=0) as output,
            open_in_order(remote.find(file).fetch, size, block_bytes) as source,
        ):
            lock_file(output)
            if is_plain_file(path):  # another process was faster
                return
            output.truncate(min(output.seek(0, os.SEEK_END), size))
            output.seek(0)
            done = 0
            while data := output.read(_COPIED_BYTES):  # the prefix on the disk
                digest.update(data)
                done += len(data)
            source.seek(done)
            while data := source.read(_COPIED_BYTES):
                disk.attempt(partial(_write, output, data, done, partial_path))
                digest.update(data)
                done += len(data)
            if digest.hexdigest() != file.content_hash:
                output.truncate(0)
                raise TransientError(f"{file.name}: the content differs from the hub's listing")
            os.fsync(output.fileno())
            os.replace(partial_path, path)
    except OSError as error:
        raise output_error(partial_path, error) from None


def _write(output: BinaryIO, data: bytes, position: int, path: Path) -> None:
    """Write a part at its place; DiskFullError if there is no space. Safe to repeat."""
    try:
        output.seek(position)
        while data:
            data = data[output.write(data) :]
    except OSError as error:
        raise output_error(path, error) from None


def fetch_model_file(repository: str, revision: str, names: Sequence[str], retrier: Retrier) -> tuple[bytes, str]:
    """Return the content and commit of the first of `names` that a model has."""
    open_session(retrier)
    for name in names:

        def fetch(name: str = name) -> Path | None:
            with translated_errors(f"model {repository}"):
                try:
                    return Path(hf_hub_download(repository, name, revision=revision or None))
                except EntryNotFoundError as error:
                    if isinstance(error, LocalEntryNotFoundError):  # an outage
                        raise
                    return None

        path = retrier.call(fetch)
        if path is not None:
            commit = str(path).removesuffix(name).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
            return path.read_bytes(), commit
    hint = f"Looked for: {', '.join(names)}. Download another file of it, and name that with --tokenizer."
    raise HubError(f"model {repository}: it has no tokenizer file of a supported kind.", hint)
