"""Cache the shards of a bucket on this machine for a loader, fetched when they are needed, and checked.

A file is fetched in pieces, the segments of our manifest, when their tokens are read. A complete and correct piece is
named by its SHA-256 from the manifest. So a piece that was fetched earlier, or by another process, is found by name.

Several processes may share a cache. The process that fetches a piece holds a lock, for which others wait. A reader
holds a shared lock on a piece as long as it is mapped; locked pieces are never deleted. The system releases all locks,
however a process ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import DamageError, DiskFullError, InputError
from fineweb_shards.output.opening import cache_home
from fineweb_shards.output.store import Store
from fineweb_shards.reading.token_file import TokenFile
from fineweb_shards.reading.verify import fetch_range
from fineweb_shards.storage.bucket_client import check_not_forked
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import lock_file, try_lock, unlock
from fineweb_shards.system.own_files import open_own
from fineweb_shards.types import ShardRecord, Tokens

DEFAULT_BYTES = 20 * 10**9
# The names made by `_path` and `_download`. The folder is the user's, and may contain other files.
_PIECE_NAME = re.compile(r"[0-9a-f]{64}\.tokens")
_PART_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{8}\.part")
_FEWEST_MAPPED = 2
_LOCKS = 64  # pieces share locks by remainder, which bounds the number of lock files


class ShardCache:
    """A folder with pieces. Of those not being read, the most recently used are kept, up to `limit_bytes` in all."""

    def __init__(self, folder: str | Path | None, limit_bytes: int) -> None:
        self.folder = cache_home() / "loader" if folder is None else Path(os.path.expanduser(folder))
        self.limit_bytes = limit_bytes

    def map(self, store: Store, piece: ShardRecord) -> NDArray[np.uint8]:
        """Map a piece into memory, after fetching it if it is missing. It is not deleted as long as the array, or a
        view of it, exists."""
        check_not_forked(store.location)  # even if this piece is cached: the next one may not be
        path = self._path(piece)
        while True:
            self._fetch(store, piece)
            with contextlib.suppress(FileNotFoundError), open_own(path, "rb") as file:  # another process deleted it
                try_lock(file, shared=True)  # kept by the array's own copy of the descriptor
                os.utime(file.fileno() if os.utime in os.supports_fd else path)
                return np.memmap(file, np.uint8, "r")

    def fetch_ahead(self, store: Store, piece: ShardRecord) -> None:
        """Start fetching a piece in the background. If that fails, `map` raises the error."""
        if not self._has(piece):
            in_background(partial(self._fetch, store, piece))

    def _path(self, piece: ShardRecord) -> Path:
        return self.folder / f"{piece.sha256}.tokens"

    def _lock_path(self, key: str) -> Path:
        return self.folder / f"lock-{int(key[:8], 16) % _LOCKS}"

    def _has(self, piece: ShardRecord) -> bool:
        try:
            state = self._path(piece).lstat()
            return stat.S_ISREG(state.st_mode) and state.st_size == piece.bytes
        except OSError:
            return False

    def _fetch(self, store: Store, piece: ShardRecord) -> None:
        """Make sure that a piece is in the cache."""
        if self._has(piece):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open_own(self._lock_path(piece.sha256), "a+b") as lock:
                lock_file(lock)
                try:
                    if not self._has(piece):  # otherwise another process has fetched it
                        self._download(store, piece)
                finally:
                    unlock(lock)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                what = f"{error.filename or self.folder}: {error.strerror or error}."
                raise InputError(what, "Choose another cache_dir.") from error
            raise DiskFullError(
                f"{self.folder}: no space for {piece.bytes:,} bytes of {piece.name}.",
                "Free some space, or choose another cache_dir.",
            ) from error

    def _download(self, store: Store, piece: ShardRecord) -> None:
        """Fetch a piece and check its hash. The caller holds its lock."""
        self._make_room(self.limit_bytes - piece.bytes)
        part = self.folder / f"{piece.sha256}.{secrets.token_hex(4)}.part"
        end = piece.offset + piece.bytes
        try:
            try:
                digest = fetch_range(store, piece.name, piece.offset, end, part)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._make_room(0)
                digest = fetch_range(store, piece.name, piece.offset, end, part)
            if digest != piece.sha256:
                raise DamageError(
                    f"{store.location}/{piece.name}: SHA-256 of bytes {piece.offset:,} to {end:,} is "
                    f"{digest}, should be {piece.sha256}.",
                    f"`fineweb-shards verify {store.location}` names all damaged files. If the output was rebuilt, "
                    "restart the training.",
                )
            os.replace(part, self._path(piece))
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, left_bytes: int) -> None:
        """Delete pieces that are not being read, least recently used first, until at most `left_bytes` are left, and
        the leftovers of interrupted downloads. Other files are left alone and do not count."""
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                if _PIECE_NAME.fullmatch(path.name):
                    state = path.lstat()
                    if stat.S_ISREG(state.st_mode):
                        found.append((state.st_mtime_ns, state.st_size, path))
                elif _PART_NAME.fullmatch(path.name):
                    _remove_unlocked(path, self._lock_path(path.name))
        size_bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if size_bytes <= left_bytes:
                return
            with contextlib.suppress(FileNotFoundError):
                size_bytes -= size if _remove_unlocked(path, path) else 0


def _remove_unlocked(path: Path, lock: Path) -> bool:
    """Delete a file if its lock is free; return whether it was deleted."""
    with open_own(lock, "rb") as file:
        if not try_lock(file):
            return False
        try:
            path.unlink()
        finally:
            unlock(file)
        return True


@dataclass(frozen=True, slots=True)
class BucketPieces:
    """The consecutive segments of a file in a bucket, and their cache."""

    store: Store
    pieces: tuple[ShardRecord, ...]
    cache: ShardCache


class PiecedTokens:
    """The tokens of a file, or of a part of it, which can be sliced like an array.

    The most recently read pieces, at most a quarter of the cache, stay mapped and are not deleted meanwhile.
    """

    def __init__(self, file: TokenFile, bucket: BucketPieces) -> None:
        self._file, self._store, self._cache = file, bucket.store, bucket.cache
        self._pieces = [
            piece
            for piece in bucket.pieces
            if piece.offset < file.end_bytes and file.header_bytes < piece.offset + piece.bytes
        ]
        self._begins = [piece.offset for piece in self._pieces]
        self._mapped: dict[int, Tokens] = {}  # by piece number, most recently read last

    def __len__(self) -> int:
        return self._file.tokens

    def __getitem__(self, wanted: slice) -> Tokens:
        first, last, _ = wanted.indices(len(self))
        if first >= last:
            return np.empty(0, self._file.dtype)
        header, width = self._file.header_bytes, self._file.dtype.itemsize
        begin, end = header + first * width, header + last * width
        parts = []
        for number in range(bisect_right(self._begins, begin) - 1, len(self._pieces)):
            if self._begins[number] >= end:
                break
            origin = max(self._begins[number], header)
            tokens = self._map(number)
            parts.append(tokens[max(0, begin - origin) // width : (end - origin) // width])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def fetch_ahead(self, number: int = 0) -> None:
        """Start fetching a piece, if there is one with this number."""
        if number < len(self._pieces):
            self._cache.fetch_ahead(self._store, self._pieces[number])

    def _map(self, number: int) -> Tokens:
        """Return the tokens of a piece; if it was not mapped, start fetching the next one."""
        tokens = self._mapped.pop(number, None)
        if tokens is None:
            piece, header = self._pieces[number], self._file.header_bytes
            tokens = self._cache.map(self._store, piece)[max(0, header - piece.offset) :].view(self._file.dtype)
            self.fetch_ahead(number + 1)
        self._mapped[number] = tokens
        mapped_bytes = sum(self._pieces[mapped].bytes for mapped in self._mapped)
        while len(self._mapped) > _FEWEST_MAPPED and mapped_bytes > self._cache.limit_bytes // 4:
            first = next(iter(self._mapped))
            mapped_bytes -= self._pieces[first].bytes
            del self._mapped[first]
        return tokens
