"""Find the objects that an address stands for: one object, a folder, or a glob.

A store has no folders, only names with slashes. A folder is what has such a name before it, and the rules of
a local folder hold: everything below it, except what is hidden.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fineweb_shards.buckets.address import BucketAddress, split_glob
from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.buckets.objects import ObjectInfo
from fineweb_shards.sources.discovery import FOLDER_PATTERN, Findings, matches_glob, with_files

OpenBucket = Callable[[str], Bucket]


@dataclass
class FoundObjects(Findings):
    """What was found in a bucket."""

    objects: dict[str, ObjectInfo] = field(default_factory=dict)  # by their names, relative to the root
    is_one: bool = False  # the address is that of an object
    is_folder: bool = False

    def path_of(self, name: str) -> str:
        return f"{self.root}/{name}"


def find_objects(text: str, open_bucket: OpenBucket) -> FoundObjects:
    """Find what an address stands for, in the order of the names."""
    folder, pattern = split_glob(text)
    if not any(letter in text for letter in "*?"):  # [ may be a part of a name
        address = BucketAddress.parse(text)
        found = None if text.endswith("/") else _find_one(address, open_bucket)
        if found is not None:
            return found
        if not glob.has_magic(text):
            folder, pattern = address, FOLDER_PATTERN
    listed = open_bucket(str(folder)).list()
    wanted = with_files(pattern)
    objects = {one.name: one for one in _without_folders(listed) if matches_glob(one.name.split("/"), wanted)}
    is_folder = pattern is FOLDER_PATTERN
    return FoundObjects(str(folder), sorted(objects), objects=objects, is_folder=is_folder)


def _find_one(address: BucketAddress, open_bucket: OpenBucket) -> FoundObjects | None:
    """Return the object at an address; None if there is none."""
    path = PurePosixPath(address.prefix)
    if not path.name:
        return None
    folder = BucketAddress(
        address.scheme, address.bucket, "" if str(path.parent) == "." else str(path.parent)
    )
    info = open_bucket(str(folder)).head(path.name)
    if info is None:
        return None
    return FoundObjects(str(folder), [path.name], objects={path.name: info}, is_one=True)


def _without_folders(listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Return objects without the empty ones by which some programs mark a folder."""
    objects = list(listed)
    folders = {str(parent) for one in objects for parent in PurePosixPath(one.name).parents}
    return [one for one in objects if one.size_bytes or one.name not in folders]
