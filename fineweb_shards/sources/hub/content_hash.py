"""The hash by which the hub knows a file: SHA-256 of a large one, git's own of a small one."""

from __future__ import annotations

import hashlib
from typing import Protocol

_GIT_HASH_DIGITS = 40


class Digest(Protocol):
    """A hash that is being computed."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def is_git_hash(content_hash: str) -> bool:
    """Return whether a hash is git's: then the hub keeps the file itself, and not in a large store."""
    return len(content_hash) == _GIT_HASH_DIGITS


def make_digest(content_hash: str, size_bytes: int) -> Digest:
    """Return a digest of the same kind as `content_hash`, for a file of that size."""
    if is_git_hash(content_hash):
        return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    return hashlib.sha256()
