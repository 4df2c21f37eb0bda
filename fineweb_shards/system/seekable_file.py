"""A base class for read-only file-like objects: a position, and how to move it."""

from __future__ import annotations

import io
from abc import abstractmethod


class SeekableFile(io.RawIOBase):
    """A file that is read from `_position` on. Subclasses read, and know its size."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The number of bytes in the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self.size_bytes)[whence]
        if position < 0:
            raise ValueError(f"there is no byte {position}")
        self._position = position
        return position
