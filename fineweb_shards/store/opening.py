"""Open the store that --out names: a folder, or a bucket with a scratch folder on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from fineweb_shards.buckets.address import BucketAddress, is_url
from fineweb_shards.errors import OutputError
from fineweb_shards.events import Observer
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.store import Store

if TYPE_CHECKING:
    from fineweb_shards.buckets.bucket import Bucket


def open_store(location: str, scratch: str, max_outage_seconds: float, observer: Observer) -> Store:
    """Open the store of a run. Nothing is read or written yet."""
    if not is_url(location):
        return FolderStore(Path(os.path.expanduser(location)))
    from fineweb_shards.store.bucket_store import BucketStore

    bucket = _open_bucket(location, max_outage_seconds, observer)
    return BucketStore(bucket, scratch_folder(location, scratch))


def open_store_to_read(location: str, observer: Observer, max_outage_seconds: float = 60) -> Store:
    """Open a store to look at it, or to read from it. Of a bucket the small files are copied into a temporary
    folder, which is removed with the store."""
    if not is_url(location):
        return FolderStore(Path(os.path.expanduser(location)))
    from fineweb_shards.store.bucket_store import BucketStore

    temporary = tempfile.TemporaryDirectory(prefix="fineweb-shards-")
    store = BucketStore(_open_bucket(location, max_outage_seconds, observer), Path(temporary.name))
    weakref.finalize(store, temporary.cleanup)
    store.fetch()
    return store


def scratch_folder(location: str, scratch: str) -> Path:
    """Return the folder on this machine for what is being made for a bucket: one for each address."""
    address = str(BucketAddress.parse(location))
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    parent = Path(os.path.expanduser(scratch or f"{caches}/fineweb-shards"))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", address.partition("://")[2])[-60:].strip("-.")
    return parent / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def _open_bucket(location: str, max_outage_seconds: float, observer: Observer) -> Bucket:
    from fineweb_shards.buckets.bucket import Bucket

    return Bucket(location, max_outage_seconds, observer, refusal=OutputError)
