"""Copy a range of a store's file to this machine, and hash it on the way."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from fineweb_shards.errors import DamageError
from fineweb_shards.store.store import Store
from fineweb_shards.system.own_files import open_own

_READ_BYTES = 2**20


def fetch_range(store: Store, name: str, begin: int, end: int, path: Path) -> str:
    """Write the bytes from `begin` to `end` of a file into a new one, durably, in constant memory; return
    their SHA-256. Raises OSError if that can't be written, or a ShardError; then it is not complete."""
    digest = hashlib.sha256()
    with open_own(path, "xb") as target:
        for data in _read(store, name, begin, end):
            digest.update(data)
            target.write(data)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _read(store: Store, name: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a range; DamageError if the file is missing or shorter."""
    try:
        with store.open(store.require(name)) as source:
            source.seek(begin)
            while begin < end:
                data = source.read(min(end - begin, _READ_BYTES))
                if not data:
                    break
                begin += len(data)
                yield data
    except OSError as error:
        raise _damage(store, name, error.strerror or str(error)) from error
    if begin < end:
        raise _damage(store, name, f"it ends before byte {end:,}")


def _damage(store: Store, name: str, what: str) -> DamageError:
    return DamageError(
        f"{store.location}/{name}: {what}.",
        f"`fineweb-shards verify {shlex.quote(store.location)}` names all damaged files.",
    )
