"""What is the same for read-only files wherever their bytes come from: a position, and how to move it."""

from __future__ import annotations

import io


class SeekableFile(io.RawIOBase):
    """A file of so many bytes, read from `_position` on. Subclasses read."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self._size_bytes)[whence]
        if position < 0:
            raise ValueError(f"there is no byte {position}")
        self._position = position
        return position
