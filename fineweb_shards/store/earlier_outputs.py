"""Tell files that a build has made from files that can be its input, by the manifest in their folder.

Without this a manifest would be read as JSON lines, and shards, where the user gives an ending, as text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fineweb_shards.buckets.address import is_url
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.sources.bucket.listing import OpenBucket
from fineweb_shards.store.manifest import FILE_NAME, has_our_fields
from fineweb_shards.system.own_files import open_own

# Most of a manifest's fields are in its beginning; a file of the same name by others may be huge.
_HEAD_BYTES = 1 << 20
# One search for all layouts: an input may have a hundred thousand names.
_OURS = re.compile(
    "|".join(
        f"(?:{pattern})"
        for pattern in (re.escape(FILE_NAME), *(layout.pattern for layout in LAYOUTS.values()))
    )
)


class EarlierOutputs:
    """The folders of finished or begun outputs among the input; each folder's manifest is read once, and only
    if there is a file of such a name."""

    def __init__(self, open_bucket: OpenBucket) -> None:
        self._open_bucket = open_bucket
        self._known: dict[str, bool] = {}  # by folder

    def has(self, path: str) -> bool:
        """Return whether a path or address is that of a manifest of ours, or of a shard or sidecar beside
        one."""
        folder, name = os.path.split(path)
        if _OURS.fullmatch(name) is None:
            return False
        if folder not in self._known:
            self._known[folder] = has_our_fields(self._read_head(folder))
        return self._known[folder]

    def _read_head(self, folder: str) -> bytes:
        """Return the beginning of a folder's manifest; nothing if there is none, or if it can't be read."""
        if is_url(folder):
            bucket = self._open_bucket(folder)
            info = bucket.head(FILE_NAME)
            size = min(info.size_bytes, _HEAD_BYTES) if info else 0
            return bucket.read_range(FILE_NAME, 0, size) if size else b""
        try:
            with open_own(Path(folder, FILE_NAME), "rb", follow_links=True) as file:
                return file.read(_HEAD_BYTES)
        except OSError:
            return b""
