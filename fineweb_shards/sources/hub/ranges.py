"""Read a file on the hub like a local file: one GET for each range that is read, every answer checked.

Plain range requests with huggingface_hub's own headers (session.py), so that HF_TOKEN, HF_ENDPOINT, offline
mode and proxies work as usual. Not `HfFileSystem`: it accepts a 200 for a Range (2 GB into memory), does not
notice a changed ETag, retries for 23 s where a night needs an hour, and asks the API at every open.
"""

from __future__ import annotations

import io
import time
from concurrent.futures import Future
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from fineweb_shards.errors import ChangedError
from fineweb_shards.sources.hub.errors import hub_host, short_name, translated_errors
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Retrier, TransientError

# A connection that delivers a few bytes now and then never runs into a timeout: below this it is given up.
_SLOWEST_BYTES_PER_SECOND = 4096


class RangeFile(io.RawIOBase):
    """A seekable file for pyarrow. Reads inside a prefetched range make no request."""

    def __init__(self, url: str, size_bytes: int, content_hash: str, retrier: Retrier) -> None:
        super().__init__()
        self._url = url
        self._size_bytes = size_bytes
        self._hash = content_hash
        self._etag: str | None = None
        self._retrier = retrier
        self._position = 0
        self._ahead: dict[tuple[int, int], Future[memoryview]] = {}

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch a range in the background. It is kept until `forget_before`."""
        self._ahead[start, stop] = in_background(lambda: self.fetch(start, stop))

    def forget_before(self, position: int) -> None:
        """Drop prefetched ranges that end before `position`."""
        for start, stop in list(self._ahead):
            if stop <= position:
                del self._ahead[start, stop]

    def fetch(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range, with retries."""
        return self._retrier.call(lambda: self._fetch_once(start, stop))

    def _fetch_once(self, start: int, stop: int) -> memoryview:
        wanted = f"bytes {start}-{stop - 1}/{self._size_bytes}"
        headers = build_hf_headers() | {
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            translated_errors(self._url),
            get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response,
        ):
            if response.status_code in (206, 416):  # 416: the file is shorter than the one that was listed
                self._check_same(response)
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            if response.status_code != 206 or response.headers.get("Content-Range") != wanted:
                status, name = response.status_code, short_name(self._url)
                raise TransientError(f"{hub_host()}: status {status} for a range of {name}")
            buffer, received, begin = bytearray(stop - start), 0, time.monotonic()
            for chunk in response.iter_raw():
                buffer[received : received + len(chunk)] = chunk
                received += len(chunk)
                self._retrier.observer.add_fetched(len(chunk))
                seconds = time.monotonic() - begin
                if seconds > timeout and received < _SLOWEST_BYTES_PER_SECOND * seconds:
                    raise TransientError(f"{hub_host()}: only {received:,} bytes in {seconds:.0f} s")
        if received != stop - start:
            raise TransientError(f"{hub_host()}: {received:,} of {stop - start:,} bytes")
        return memoryview(buffer)

    def _check_same(self, response: Any) -> None:
        """Raise ChangedError if the file is not the one that was listed. A CDN has ETags of its own: those
        are compared with each other, the hub's redirect with the listing. In doubt the hub is asked again."""
        etag = _strip(response.headers.get("ETag"))
        linked = [_strip(answer.headers.get("X-Linked-ETag")) for answer in response.history]
        known = self._hash if not response.history else self._etag or etag
        if etag == known and all(tag in (None, self._hash) for tag in linked):
            self._etag = etag
            return
        now = get_hf_file_metadata(self._url, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT).etag
        if now != self._hash:
            raise ChangedError(f"{short_name(self._url)}: the file on the hub was {self._hash} and is {now}.")
        raise TransientError(f"{hub_host()}: an answer with another ETag for {short_name(self._url)}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def read(self, length: int = -1) -> memoryview:
        """Read without a copy: pyarrow accepts any object with a buffer."""
        start = self._position
        stop = self._size_bytes if length is None or length < 0 else min(self._size_bytes, start + length)
        if stop <= start:
            return memoryview(b"")
        self._position = stop
        for (first, last), future in list(self._ahead.items()):
            if first <= start and stop <= last:
                return future.result()[start - first : stop - first]
        return self.fetch(start, stop)

    def close(self) -> None:
        self._ahead.clear()
        super().close()


def _strip(etag: str | None) -> str | None:
    return etag.removeprefix("W/").strip('"') if etag else None
