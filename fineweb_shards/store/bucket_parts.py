"""The parts of a file that grows in a bucket, where nothing can be appended to an object.

Each segment of such a file is an object of its own until the file is whole. Then all of them are copied into
one. An object under the file's own name may stand for its beginning: it was whole before, and grows on.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from fineweb_shards.storage.bucket_requests import ObjectInfo
from fineweb_shards.storage.byte_source import SeekableFile
from fineweb_shards.system.durable import WORK_FOLDER

PARTS_FOLDER = f"{WORK_FOLDER}/parts"
_DIGITS = 16  # of the offset in a part's name, so that names sort as parts follow one another


@dataclass(frozen=True, slots=True)
class FilePart:
    """An object that holds the bytes of a file from `begin` on."""

    file: str  # the name of the finished file
    begin: int
    info: ObjectInfo

    @property
    def end(self) -> int:
        return self.begin + self.info.size_bytes


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The bytes of a file from `begin` to `end`, which are in an object from its byte `skip` on."""

    begin: int
    end: int
    info: ObjectInfo
    skip: int = 0


def part_name(file: str, begin: int) -> str:
    """Return the name of the object for the bytes of a file from `begin` on."""
    return f"{PARTS_FOLDER}/{file}/{begin:0{_DIGITS}}"


def parse_part(info: ObjectInfo) -> FilePart | None:
    """Return the part that an object is; None if it has another name."""
    file, _, begin = info.name.removeprefix(f"{PARTS_FOLDER}/").rpartition("/")
    whole_name = begin.isdecimal() and file and info.name == part_name(file, int(begin))
    return FilePart(file, int(begin), info) if whole_name else None


def cover(named: ObjectInfo | None, parts: Sequence[FilePart]) -> list[FilePiece]:
    """Return the pieces that make up a file from its first byte on, as far as there are any without a gap.

    A part is newer than what the object under the file's own name has in its place.
    """
    by_begin = {part.begin: part for part in parts}
    named_end = named.size_bytes if named else 0
    pieces: list[FilePiece] = []
    position = 0
    while True:
        part = by_begin.get(position)
        if part is not None and part.end > position:
            pieces.append(FilePiece(position, part.end, part.info))
        elif named is not None and position < named_end:
            end = min([named_end, *(begin for begin in by_begin if begin > position)])
            pieces.append(FilePiece(position, end, named, position))
        else:
            return pieces
        position = pieces[-1].end


def cut_pieces(pieces: Sequence[FilePiece], end: int) -> list[FilePiece]:
    """Return the pieces up to a byte of the file."""
    return [replace(piece, end=min(piece.end, end)) for piece in pieces if piece.begin < end]


FileSource = tuple[int, Callable[[], BinaryIO]]  # a number of bytes, and what opens the file that has them


class JoinedFile(SeekableFile):
    """Files one after the other, as one that can be read and searched. Each is opened when it is read."""

    def __init__(self, sources: Sequence[FileSource]) -> None:
        super().__init__()
        self._size_bytes = sum(size for size, _ in sources)
        self._sources = sources
        self._open: tuple[int, int, BinaryIO] | None = None  # where the open file ends, where it is, itself

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer, says typeshed
        if self._position >= self._size_bytes or not len(buffer):
            return 0
        if self._open is None or self._open[1] != self._position or self._open[0] <= self._position:
            self._open_source()
        assert self._open is not None
        end, _, file = self._open
        data = file.read(min(len(buffer), end - self._position))
        if not data:
            raise OSError(f"a part has become shorter while it was read, at byte {self._position:,}")
        buffer[: len(data)] = data
        self._position += len(data)
        self._open = end, self._position, file
        return len(data)

    def close(self) -> None:
        self._close_source()
        super().close()

    def _open_source(self) -> None:
        """Open the file that has the current position, at that position."""
        self._close_source()
        begin = 0
        for size, opened in self._sources:
            if self._position < begin + size:
                file = opened()
                file.seek(self._position - begin, io.SEEK_CUR)
                self._open = begin + size, self._position, file
                return
            begin += size

    def _close_source(self) -> None:
        if self._open is not None:
            self._open[2].close()
            self._open = None
