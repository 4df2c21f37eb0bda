"""Define a place: where the bytes of input files are. Formats read from every place in the same way.

A place opens a file for reading by ranges (`open`), or front to back (`stream`). It exists in the parent and, by
pickling, in every worker. A new place is a subclass of `Place` and an entry in `PLACES`.

Both return a `ByteSource`, or a file made of one: it serves formats, which read ranges, and pyarrow, which reads a
seekable file. For sequential reads it prefetches the next blocks (`blocks_ahead`). `fetch` retries single ranges.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, BinaryIO, ClassVar

from fineweb_shards.errors import BadFileError
from fineweb_shards.events import Observer
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Retrier

Fetch = Callable[[int, int], memoryview]  # returns all bytes of a range
_BLOCK_BYTES = 4 * 2**20
_BLOCKS_AHEAD = 4  # with the current one 20 MiB
_BUFFER_BYTES = 2**17


class ByteSource(io.RawIOBase):
    """A file on the hub or in a bucket, read by ranges. Reads inside a prefetched range make no request."""

    def __init__(self, fetch: Fetch, size_bytes: int, blocks_ahead: int = 0, block_bytes: int | None = None) -> None:
        super().__init__()
        self._position = 0
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._ahead: dict[tuple[int, int], Future[memoryview]] = {}
        self._blocks_ahead = blocks_ahead
        self._block_bytes = block_bytes or _BLOCK_BYTES
        self._last_block = -1  # the number of the last one read

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch a range in the background, and keep it until `forget_before`."""
        if (start, stop) not in self._ahead:
            self._ahead[start, stop] = in_background(partial(self._fetch, start, stop))

    def forget_before(self, position: int) -> None:
        for start, stop in list(self._ahead):
            if stop <= position:
                del self._ahead[start, stop]

    def is_fetched(self, start: int, stop: int) -> bool:
        """Return whether a range can be read without a new request."""
        return any(first <= start and stop <= last for first, last in list(self._ahead))

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range; prefetched ones are not copied."""
        for (first, last), future in list(self._ahead.items()):
            if first <= start and stop <= last:
                return future.result()[start - first : stop - first]
        return self._fetch(start, stop)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end."""
        stop = min(offset + size, self.size_bytes)
        return bytes(self.read_range(offset, stop)) if offset < stop else b""

    def for_arrow(self) -> Any:
        return self

    # As a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self.size_bytes)[whence]
        if position < 0:
            raise ValueError(f"negative position {position}")
        self._position = position
        return position

    def read(self, length: int = -1) -> memoryview:
        """Read without a copy: pyarrow accepts any object with a buffer."""
        start, size = self._position, self.size_bytes
        stop = size if length is None or length < 0 else min(size, start + length)
        if stop <= start:
            return memoryview(b"")
        self._position = stop
        return self.read_range(start, stop)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer, says typeshed
        size, start, number = self._block_bytes, self._position, self._position // self._block_bytes
        stop = min(self.size_bytes, start + len(buffer), (number + 1) * size)
        if stop <= start:
            return 0
        # Fetch the block and, for sequential reads, those after it; drop all others.
        in_order = number in (self._last_block, self._last_block + 1)
        self._last_block = number
        wanted = range(number, number + 1 + self._blocks_ahead)
        for first, last in list(self._ahead):
            if first // size not in wanted:
                del self._ahead[first, last]
        for begin in [block * size for block in (wanted if in_order else wanted[:1])]:
            if begin < self.size_bytes:
                self.prefetch(begin, min(begin + size, self.size_bytes))
        buffer[: stop - start] = self.read_range(start, stop)
        self._position = stop
        return stop - start

    def readall(self) -> bytes:
        parts, buffer = [], bytearray(self._block_bytes)
        while length := self.readinto(memoryview(buffer)):
            parts.append(bytes(buffer[:length]))
        return b"".join(parts)

    def close(self) -> None:
        self._ahead.clear()
        super().close()


def open_in_order(fetch: Fetch, size_bytes: int, block_bytes: int | None = None) -> BinaryIO:
    """Return a seekable file that prefetches a few blocks during sequential reads."""
    source = ByteSource(fetch, size_bytes, blocks_ahead=_BLOCKS_AHEAD, block_bytes=block_bytes)
    return io.BufferedReader(source, _BUFFER_BYTES)  # type: ignore[type-var] # it only calls `readinto`


STANDARD_INPUT = "-"
LOCAL, HUB, HUB_ON_DISK, BUCKET, WEB, SCRATCH = "local", "hub", "hub-on-disk", "bucket", "web", "scratch"
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})  # of HTTP: a retry may succeed


@dataclass(frozen=True, slots=True)
class HubRef:
    """A dataset on the hub at one commit, and how to read it."""

    dataset: str
    name: str
    hub_split: str
    commit: str
    work_folder: str  # for the files that the processes of a run share, and for downloads
    keep_downloads: bool


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file, with the facts that reveal a change."""

    index: int
    path: str  # or STANDARD_INPUT, or the address of an object in a bucket
    name: str  # for messages and the manifest: the path relative to the --input
    format: str  # a key of formats.registry.FORMATS
    compression: str | None  # "gzip", "zstd" or None
    size_bytes: int
    mtime_ns: int
    content_hash: str  # of samples of a local file; for a remote one, the hub's hash, or a bucket's ETag
    problem: str | None = None  # why it can't be read at all: a broken link, a folder without permission
    is_pipe: bool = False  # standard input or a named pipe: can be read once, front to back
    for_validation: bool = False  # all its documents: named by --val-input
    separator: str = ""  # detected in a text without --separator; "": use the setting
    place: str = LOCAL  # a key of PLACES

    @property
    def is_remote(self) -> bool:
        return self.place in (HUB, BUCKET, WEB)

    @property
    def is_missing(self) -> bool:
        """Whether it is a download from the hub that is not yet on the disk."""
        return self.place == HUB_ON_DISK and not os.path.exists(self.path)


class Place(ABC):
    """Where files are. Threads may share it."""

    is_remote: ClassVar[bool] = False  # ranges are requests, and may arrive damaged

    def __init__(
        self, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
    ) -> None:
        self.hub = hub
        self.max_outage_seconds = max_outage_seconds
        self.retrier = Retrier(max_outage_seconds, observer)

    def __reduce__(self) -> tuple[type[Place], tuple[HubRef | None, int]]:
        return type(self), (self.hub, self.max_outage_seconds)  # without open files and connections

    def reopened(self, observer: Observer | None) -> Place:
        """Return the same place with no file open; a new `observer` replaces the old one."""
        return type(self)(self.hub, self.max_outage_seconds, observer or self.retrier.observer)

    @abstractmethod
    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        """Open a file for reading by ranges, at the `address` from another process, if given."""

    @abstractmethod
    def stream(self, file: InputFile) -> BinaryIO:
        """Open a file for reading front to back, without decompressing it; may raise OSError."""

    def expect(self, files: Sequence[InputFile]) -> None:
        """Prepare files that will be read next, for example by downloading them. Runs in the parent."""

    def has(self, file: InputFile) -> bool:
        """Return whether a file can be opened now, without waiting for a download."""
        return True

    def address_of(self, file: InputFile) -> str | None:
        """Return the address of a file's bytes, so that workers need not ask for it; None if they need none."""
        return None

    def release(self, files: Sequence[InputFile]) -> None:
        """Free the resources of files that will never be read again. Runs in the parent."""


# Imported by name when needed: a run over local files never loads the hub's clients.
PLACES = {
    LOCAL: "local.LocalPlace",
    HUB: "hub.HubPlace",
    HUB_ON_DISK: "hub.HubOnDiskPlace",
    BUCKET: "bucket.BucketPlace",
    WEB: "bucket.BucketPlace",
    SCRATCH: "local.ScratchPlace",
}


def open_place(
    name: str, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
) -> Place:
    found: type[Place] = resolve_name(f"{__package__}.{PLACES[name]}")
    return found(hub, max_outage_seconds, observer)


def read_error(file: InputFile, error: OSError) -> BadFileError:
    return BadFileError(f"{file.path}: {error.strerror or error}.")


def plain_etag(etag: str | None) -> str:
    """Return an ETag without quotes: some servers send them in listings, some only in answers."""
    return etag.removeprefix("W/").strip('"') if etag else ""
