"""One file on the hub, fetched by ranges: where its bytes are, and whether they are those that were listed.

The hub is asked once where the bytes are (`resolve`), and from then on the CDN alone, until the address
expires or is refused. The token is sent to the hub only. Every answer is checked: status, range, length, and
that it is still the same file. Not `HfFileSystem`: it accepts a 200 for a Range (2 GB into memory), does not
notice a changed ETag, retries for 23 s where a night needs an hour, and asks the hub for every range.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial

import urllib3
import urllib3.exceptions
from huggingface_hub import constants, get_hf_file_metadata, get_token
from huggingface_hub.utils import build_hf_headers

from fineweb_shards.errors import ChangedError, HubError
from fineweb_shards.sources.hub import connections
from fineweb_shards.sources.hub.address import Address
from fineweb_shards.sources.hub.errors import (
    TRANSIENT_STATUSES,
    host_of,
    is_hub,
    request_error,
    short_name,
    status_error_of,
    translated_errors,
)
from fineweb_shards.sources.hub.quota import Quota
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
            response = connections.get(url, headers, timeout, follow_redirects=not on_hub)
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
