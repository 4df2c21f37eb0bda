"""Files on the hub, fetched by ranges: where their bytes are, and whether they are those that were listed.

The hub answers `/resolve/` with an address at a CDN that is a permission in itself, for about an hour. It is
asked once for a file, and from then on the CDN alone, until the address expires or is refused: the hub counts
requests. The token is sent to the hub only. Every answer is checked: status, range, length, and that it is
still the same file. Not `HfFileSystem`: it accepts a 200 for a Range (2 GB into memory), does not notice a
changed ETag, retries for 23 s where a night needs an hour, and asks the hub for every range.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

import urllib3
import urllib3.exceptions
from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.utils import build_hf_headers

from fineweb_shards.errors import ChangedError, HubError
from fineweb_shards.events import Observer
from fineweb_shards.storage.byte_source import ByteSource, open_in_order
from fineweb_shards.storage.hub_errors import (
    TRANSIENT_STATUSES,
    host_of,
    is_hub,
    request_error,
    short_name,
    status_error_of,
    translated_errors,
)
from fineweb_shards.storage.hub_session import Quota, open_session, send_get
from fineweb_shards.storage.place import HubRef, InputFile, Place
from fineweb_shards.system.retry import Retrier, TransientError
from fineweb_shards.system.shared_memory import mmap_buffer

# A connection that delivers a few bytes now and then never runs into a timeout: below this it is given up.
_SLOWEST_BYTES_PER_SECOND = 4096
_READ_BYTES = 256 * 1024


# The address may lead to a host that is gone, or in a circle.
_NO_ANSWER = (
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.MaxRetryError,
)
# A little earlier, because requests that are under way must still be answered.
_SHARE_OF_LIFETIME = 0.9
_LONGEST_MARGIN_SECONDS = 60.0
# For an address that does not tell, or tells nonsense, as it seems to if this machine's clock is wrong: then
# the CDN's refusal is what ends it.
_UNKNOWN_LIFETIME_SECONDS = 1800.0
_LONGEST_LIFETIME_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bytes of a file are, for a while."""

    url: str = field(repr=False)  # it holds a signature, which belongs in no log
    good_until: float  # on this process's monotonic clock

    @classmethod
    def received(cls, url: str) -> Address:
        """Return the address that has just been received."""
        left = lifetime_seconds(url, time.time())
        margin = min(_LONGEST_MARGIN_SECONDS, left * (1 - _SHARE_OF_LIFETIME))
        return cls(url, time.monotonic() + left - margin)

    @property
    def is_good(self) -> bool:
        """Whether it is still to be used."""
        return time.monotonic() < self.good_until


def lifetime_seconds(url: str, now: float) -> float:
    """Return how long an address holds from `now` on, by CloudFront's and S3's parameters in it."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        if "Expires" in query:
            expires = float(query["Expires"])
        else:
            signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            expires = signed.timestamp() + float(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        return _UNKNOWN_LIFETIME_SECONDS
    left = expires - now
    return left if 0 < left <= _LONGEST_LIFETIME_SECONDS else _UNKNOWN_LIFETIME_SECONDS


AddressBook = dict[str, Address]  # by the file's URL on the hub


class _BadAddressError(TransientError):
    """The address is of no use: the hub has to be asked for another one."""


class RemoteFile:
    """A file of a dataset at one commit. Threads may share it."""

    def __init__(
        self,
        url: str,
        size_bytes: int,
        content_hash: str,
        retrier: Retrier,
        quota: Quota | None = None,
        book: AddressBook | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self._url = url  # on the hub
        self._hash = content_hash  # by the listing; the hub's ETag
        self._retrier = retrier
        self._quota = quota
        self._book: AddressBook = {} if book is None else book
        self._refused = ""  # the last address that was of no use; others may still pass it on
        self._etags: dict[str, str] = {}  # of the answers from each address
        self._asking = threading.Lock()  # held while the hub is asked, for as long as an outage
        self._lock = threading.Lock()  # held for a moment

    @property
    def address(self) -> str:
        """Where the bytes are; the hub is asked if that is not known, or not for much longer."""
        return self._retrier.call(self._find).url

    def learn(self, url: str) -> None:
        """Take an address that another process has asked for."""
        with self._lock:
            if self._known() is None and url != self._refused:
                self._book[self._url] = Address.received(url)

    def fetch(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range, with retries."""
        return self._retrier.call(partial(self._fetch_once, start, stop))

    def _find(self) -> Address:
        known = self._known()
        if known is None:
            with self._asking:
                known = self._known()  # another thread may have asked meanwhile
                if known is None:
                    known = self._book[self._url] = self._resolve()
        return known

    def _known(self) -> Address | None:
        known = self._book.get(self._url)
        return known if known is not None and known.is_good else None

    def _resolve(self) -> Address:
        """Ask the hub where the bytes are now; ChangedError if it says twice that it has another file."""
        for _ in range(2):
            with translated_errors(self._url):
                found = get_hf_file_metadata(self._url, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
            if found.etag == self._hash:
                return Address.received(found.location)
        name = short_name(self._url)
        raise ChangedError(f"{name}: the file on the hub was {self._hash} and is {found.etag}.")

    def _forget(self, address: Address) -> None:
        with self._lock:
            self._refused = address.url
            if self._book.get(self._url) is address:  # else another thread has a new one already
                del self._book[self._url]

    def _fetch_once(self, start: int, stop: int) -> memoryview:
        address = self._find()
        try:
            with translated_errors(self._url):
                return self._get(address.url, start, stop)
        except _BadAddressError:
            self._forget(address)
            raise

    def _get(self, url: str, start: int, stop: int) -> memoryview:
        on_hub = is_hub(url)
        headers = build_hf_headers(token=None if on_hub else False) | {
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        if on_hub and self._quota is not None:
            self._quota.take(url, has_token=get_token() is not None)
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        try:
            response = send_get(url, headers, timeout, follow_redirects=not on_hub)
        except _NO_ANSWER as error:
            raise _bad_address(request_error(url, error)) from None
        except urllib3.exceptions.LocationValueError:  # no address at all
            raise _BadAddressError(f"{host_of(url)}: an address that can't be used") from None
        except urllib3.exceptions.HTTPError as error:
            raise request_error(url, error) from None
        try:
            if on_hub and self._quota is not None:
                self._quota.learn(url, response.status, response.headers)
            self._check(url, response.status, response.headers, start, stop)
            return self._read(url, response, stop - start)
        except urllib3.exceptions.HTTPError as error:
            raise request_error(url, error) from None
        finally:
            # Back to the pool if all of it was read. Otherwise the rest may be anything, even 2 GB.
            response.release_conn() if response.closed else response.close()

    def _check(self, url: str, status: int, headers: Mapping[str, str], start: int, stop: int) -> None:
        """Raise an error for an answer that is not the range that was asked for, of the right file."""
        host, name = host_of(url), short_name(self._url)
        if status in TRANSIENT_STATUSES:
            raise status_error_of(url, status, headers)
        # Perhaps the signature has expired, or this is not the right host; the hub will say if it is more.
        if status != 206 or headers.get("Content-Range") != f"bytes {start}-{stop - 1}/{self.size_bytes}":
            raise _BadAddressError(f"{host}: status {status} for a range of {name}")
        # A CDN has ETags of its own, so they are compared with each other; the hub's was compared with the
        # listing when it was asked for this address.
        etag = _strip(headers.get("ETag"))
        known = self._hash if is_hub(url) else self._etags.setdefault(url, etag)
        if etag != known:
            self._etags.pop(url, None)
            raise _BadAddressError(f"{host}: an answer with another ETag for {name}")

    def _read(self, url: str, response: urllib3.BaseHTTPResponse, size: int) -> memoryview:
        """Return the body of an answer."""
        buffer, received, begin = mmap_buffer(size), 0, time.monotonic()
        while received < size and (data := response.read1(_READ_BYTES, decode_content=False)):
            if received + len(data) > size:
                break
            buffer[received : received + len(data)] = data
            received += len(data)
            self._retrier.observer.add_fetched(len(data))
            seconds = time.monotonic() - begin
            if seconds > constants.HF_HUB_DOWNLOAD_TIMEOUT and received < _SLOWEST_BYTES_PER_SECOND * seconds:
                raise TransientError(f"{host_of(url)}: only {received:,} bytes in {seconds:.0f} s")
        if received != size:
            raise TransientError(f"{host_of(url)}: {received:,} of {size:,} bytes")
        return buffer


def _bad_address(error: TransientError | HubError) -> TransientError | HubError:
    """Return a failure to connect as one of the address: it may lead to a host that is gone."""
    if isinstance(error, HubError):
        return error
    return _BadAddressError(error.reason, error.retry_after_seconds, error.advice)


def _strip(etag: str | None) -> str:
    return etag.removeprefix("W/").strip('"') if etag else ""


class HubPlace(Place):
    """Files of a dataset on the hub, by ranges. Where their bytes are is known once for a process."""

    is_remote = True

    def __init__(
        self,
        hub: HubRef | None = None,
        max_outage_seconds: int = 0,
        observer: Observer | None = None,
        book: AddressBook | None = None,
    ) -> None:
        super().__init__(hub, max_outage_seconds, observer)
        assert hub is not None, "files on the hub belong to a dataset"
        self._dataset = hub
        self._quota = Quota(Path(hub.work_folder), self.retrier.clock)
        self._files: dict[str, RemoteFile] = {}
        self._book: AddressBook = {} if book is None else book
        self._lock = threading.Lock()
        open_session(self.retrier, self._quota)

    def reopened(self, observer: Observer | None) -> HubPlace:
        """Return the same with no file open, but with the addresses that are known."""
        return HubPlace(self.hub, self.max_outage_seconds, observer or self.retrier.observer, self._book)

    def find(self, file: InputFile) -> RemoteFile:
        """Return a file, which is asked for its bytes."""
        with self._lock:
            if file.path not in self._files:
                hub = self._dataset
                url = hf_hub_url(hub.dataset, file.name, repo_type="dataset", revision=hub.commit)
                self._files[file.path] = RemoteFile(
                    url, file.size_bytes, file.content_hash, self.retrier, self._quota, self._book
                )
            return self._files[file.path]

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        remote = self.find(file)
        if address is not None:
            remote.learn(address)
        return ByteSource(remote.fetch, file.size_bytes, self.retrier.observer)

    def stream(self, file: InputFile) -> BinaryIO:
        return open_in_order(self.find(file).fetch, file.size_bytes)

    def address_of(self, file: InputFile) -> str | None:
        return self.find(file).address
