"""A folder in a bucket that can be read in a process forked from one that has used it.

The client of object stores hangs there; such a process asks a helper process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.buckets.stores import was_forked
from fineweb_shards.loader.helper_process import HelperProcess
from fineweb_shards.reading.fetched_range import fetch_range
from fineweb_shards.store.bucket_store import BucketStore
from fineweb_shards.store.store import FoundFile


class ForkableStore(BucketStore):
    """A bucket's folder for a loader, which only reads it, and needs no copies of its small files."""

    def __init__(self, bucket: Bucket, scratch: Path) -> None:
        super().__init__(bucket, scratch)
        self._helper = HelperProcess(self)  # for a forked process

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkableStore, (self._bucket, self._scratch)

    def fetch_range(self, name: str, begin: int, end: int, path: Path) -> str:
        """Copy a range of a file to this machine: see reading/fetched_range.py."""
        if was_forked():
            return str(self._ask("fetch_range", name, begin, end, path))
        return fetch_range(self, name, begin, end, path)

    def find(self, name: str) -> FoundFile | None:
        if was_forked():
            return cast(FoundFile | None, self._ask("find", name))
        return super().find(name)

    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        if was_forked():
            return cast(bytes, self._ask("read_range", file, begin, end))
        return super().read_range(file, begin, end)

    def is_locked(self) -> bool:
        return bool(self._ask("is_locked")) if was_forked() else super().is_locked()

    def manifest_version(self) -> object:
        return self._ask("manifest_version") if was_forked() else super().manifest_version()

    def read_manifest(self) -> bytes | None:
        if was_forked():
            return cast(bytes | None, self._ask("read_manifest"))
        return super().read_manifest()

    def _ask(self, method: str, *arguments: object) -> Any:
        return self._helper.call(method, *arguments)
