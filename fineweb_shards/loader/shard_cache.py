"""Keep the shards of a bucket that a loader needs on this machine: fetched when their turn comes, checked.

A file is fetched in pieces: the segments of our manifest, each with its SHA-256, or ranges of a certain size.
A piece has its name in the cache when all of it is there and right, and the name holds that hash (or, without
a manifest, the object's ETag): so a piece that was fetched earlier, or by another process, is only looked up.

Several processes may share a cache. Whoever fetches a piece holds a lock, and the others wait for it. Whoever
reads one holds a shared lock on it as long as it is mapped, and what is locked is never deleted. All of them
are freed by the system, however a process ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import ChangedError, DamageError, DiskFullError, InputError
from fineweb_shards.loader.forkable_store import ForkableStore
from fineweb_shards.store.opening import cache_home
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import lock_file, try_lock, unlock
from fineweb_shards.system.own_files import open_own

DEFAULT_BYTES = 20 * 10**9
_SUFFIX = ".tokens"
_PART_SUFFIX = ".part"
# What `_path` and `_download` name, and nothing else: the folder is the user's, and may hold other files.
_PIECE_NAME = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}")
_PART_NAME = re.compile(rf"[0-9a-f]{{64}}\.[0-9a-f]{{8}}{re.escape(_PART_SUFFIX)}")
_LOCKS = 64  # a lock is for all pieces with the same remainder: so that no piece leaves a lock file


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of a file from `begin` to `end`, which are fetched at once."""

    store: ForkableStore
    name: str
    begin: int
    end: int
    sha256: str = ""  # empty if nobody has recorded it; then the ETag says which content is meant
    etag: str = ""

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    @property
    def key(self) -> str:
        """Its name in a cache, another one for other content."""
        if self.sha256:
            return self.sha256
        identity = f"{self.store.location}/{self.name} {self.etag} {self.begin} {self.end}"
        return hashlib.sha256(identity.encode()).hexdigest()


class ShardCache:
    """A folder with pieces. Of those that nobody reads, the ones that were used last are kept, up to
    `limit_bytes` in all."""

    def __init__(self, folder: str | Path | None, limit_bytes: int) -> None:
        self.folder = cache_home() / "loader" if folder is None else Path(os.path.expanduser(folder))
        self.limit_bytes = limit_bytes

    def map(self, piece: Piece) -> NDArray[np.uint8]:
        """Map a piece into memory; fetch it first if it is not here. It is not deleted as long as the array,
        or a part of it, exists."""
        path = self._path(piece)
        while True:
            self._fetch(piece)
            with contextlib.suppress(FileNotFoundError), open_own(path, "rb") as file:  # deleted right now
                try_lock(file, shared=True)  # held by the array's own copy of the descriptor
                os.utime(file.fileno() if os.utime in os.supports_fd else path)
                return np.memmap(file, np.uint8, "r")

    def fetch_ahead(self, piece: Piece) -> None:
        """Begin to fetch a piece in the background. If that fails, `map` will say so."""
        if not self._has(piece):
            in_background(partial(self._fetch, piece))

    def _path(self, piece: Piece) -> Path:
        return self.folder / f"{piece.key}{_SUFFIX}"

    def _has(self, piece: Piece) -> bool:
        try:
            state = self._path(piece).lstat()
            return stat.S_ISREG(state.st_mode) and state.st_size == piece.size_bytes
        except OSError:
            return False

    def _fetch(self, piece: Piece) -> None:
        """Make sure that a piece is here."""
        if self._has(piece):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(piece.key):
                if not self._has(piece):  # another process may have fetched it
                    self._make_room(self.limit_bytes - piece.size_bytes)
                    self._download(piece)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                what = f"{error.filename or self.folder}: {error.strerror or error}."
                raise InputError(what, "Choose another cache_dir.") from error
            raise DiskFullError(
                f"{self.folder}: no space for {piece.size_bytes:,} bytes of {piece.name}.",
                "Free some space, or choose another cache_dir.",
            ) from error

    def _download(self, piece: Piece) -> None:
        part = self.folder / f"{piece.key}.{secrets.token_hex(4)}{_PART_SUFFIX}"
        try:
            try:
                digest = piece.store.fetch_range(piece.name, piece.begin, piece.end, part)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._make_room(0)
                digest = piece.store.fetch_range(piece.name, piece.begin, piece.end, part)
            _check(piece, digest)
            os.replace(part, self._path(piece))
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        with open_own(self._lock_path(key), "a+b") as file:
            lock_file(file)
            try:
                yield
            finally:
                unlock(file)

    def _lock_path(self, key: str) -> Path:
        return self.folder / f"lock-{int(key[:8], 16) % _LOCKS}"

    def _make_room(self, left_bytes: int) -> None:
        """Delete pieces that nobody reads, those that were used longest ago first, until the rest has at most
        `left_bytes` bytes; and what is left of interrupted downloads. Files of others are left alone, and do
        not count."""
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process deletes, too
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
    """Delete a file if nobody holds its lock; return whether it was deleted."""
    file: BinaryIO
    with open_own(lock, "rb") as file:
        if not try_lock(file):
            return False
        try:
            path.unlink()
        except PermissionError:  # Windows: it is open
            return False
        finally:
            unlock(file)
        return True


def _check(piece: Piece, digest: str) -> None:
    """Raise an error if what was fetched is not the content that was meant."""
    location = piece.store.location
    if piece.sha256 and digest != piece.sha256:
        raise DamageError(
            f"{location}/{piece.name}: SHA-256 of bytes {piece.begin:,} to {piece.end:,} is {digest}, should "
            f"be {piece.sha256}.",
            f"`fineweb-shards verify {location}` names all damaged files. If it was built anew, begin anew.",
        )
    if not piece.sha256:
        found = piece.store.find(piece.name)
        if found is None or found.etag != piece.etag:
            raise ChangedError(
                f"{location}/{piece.name}: the object was replaced while it was being read.",
                "Begin the training anew, or restore the object.",
            )
