"""A local file on its way into a bucket: how large its parts are, and what went wrong while it was read."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from concurrent import futures
from typing import BinaryIO, TypeVar

from fineweb_shards.events import Observer
from fineweb_shards.system.background import in_background

_SMALLEST_PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000  # S3's limit
UPLOAD_MEMORY_BYTES = 64 * 2**20  # for the parts on their way, unless a single one is larger
_MIB = 2**20
_SILENT_SECONDS = 30.0  # without a part that was taken: shown as a wait
_LOOK_SECONDS = 1.0

Result = TypeVar("Result")


def part_bytes_for(size_bytes: int) -> int:
    """Return the size of the parts: whole MiB, and as small as 10,000 parts allow."""
    needed = -(-size_bytes // _MOST_PARTS)
    return max(_SMALLEST_PART_BYTES, -(-needed // _MIB) * _MIB)


def parts_at_once(part_bytes: int) -> int:
    """Return how many parts are on their way at once."""
    return max(1, UPLOAD_MEMORY_BYTES // part_bytes - 1)  # one more is being read


class UploadFile:
    """A file of `size_bytes` that obstore reads: all of them, or an error, because what obstore has read to
    its end is published, however short it is. Remembers what was raised by a read, a signal's exception for
    example: obstore turns every exception into an OSError."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
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

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def wait_for_upload(
    upload: Callable[[], Result], source: UploadFile, address: object, observer: Observer
) -> Result:
    """Return what an upload of `source` returns. If it does not go on for long, the observer hears of it:
    obstore would tell of a silent server only after minutes, because a part may take as long to be sent."""
    uploaded = in_background(upload)
    is_told = False
    try:
        while futures.wait([uploaded], _LOOK_SECONDS).not_done:
            is_silent = time.monotonic() - source.last_read > _SILENT_SECONDS
            if is_silent != is_told:
                is_told = is_silent
                since = time.strftime("%H:%M", time.localtime(time.time() - _SILENT_SECONDS))
                text = f"waiting for the network since {since} ({address}: an upload does not go on)"
                observer.set_wait("network", text if is_silent else None)
    finally:
        if is_told:
            observer.set_wait("network", None)
    return uploaded.result()
