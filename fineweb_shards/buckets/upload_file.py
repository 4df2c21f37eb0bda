"""A local file on its way into a bucket: how large its parts are, and what went wrong while it was read."""

from __future__ import annotations

import errno
from typing import BinaryIO

_SMALLEST_PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000  # S3's limit
UPLOAD_MEMORY_BYTES = 64 * 2**20  # for the parts on their way, unless a single one is larger
_MIB = 2**20


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
        self.failure: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
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
