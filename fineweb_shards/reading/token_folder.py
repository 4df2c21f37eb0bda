"""A folder with files of tokens, made by any program: on this machine, or in a bucket.

What is beside a file says how to read it: our manifest, or datatrove's metadata.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from fineweb_shards.buckets.address import is_url
from fineweb_shards.errors import InputError
from fineweb_shards.events import Observer
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import FILE_NAME, is_ours, parse_manifest
from fineweb_shards.store.opening import is_object, open_store_to_read
from fineweb_shards.store.store import Store


class TokenFolder:
    """A store whose files may be anybody's."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store}  # a manifest may be large, and is read again where it is needed

    def __str__(self) -> str:
        return self.store.location

    def address(self, name: str) -> str:
        """Return what a user calls a file of the folder."""
        return f"{self.store.location}/{name}" if self.store.is_remote else str(self.store.folder / name)

    @cached_property
    def manifest(self) -> Manifest | None:
        """Our manifest; None if there is none, or another program's. A damaged one raises DamageError:
        guessing how wide tokens are would give wrong ones."""
        try:
            data = self.store.read_manifest()
        except OSError as error:
            raise InputError(
                f"{self.address(FILE_NAME)}: {error.strerror or error}.", "Check the folder."
            ) from error
        if data is None or not is_ours(self.store.folder, data):
            return None
        return parse_manifest(data, self.store.folder, self.store.location)


def is_folder(location: str | Path) -> bool:
    """Tell whether a path or an address is that of a folder. In a bucket, what is no object is a folder."""
    return not is_object(location) if is_address(location) else Path(location).is_dir()


def split_location(location: str | Path) -> tuple[str, str]:
    """Divide the path or address of a file into that of its folder, and its name."""
    if not is_address(location):
        return str(Path(location).parent), Path(location).name
    folder, _, name = location.rstrip("/").rpartition("/")
    return folder, name


def open_folder(location: str | Path) -> TokenFolder:
    """Open a folder by its path or its address."""
    if is_address(location):
        return TokenFolder(open_store_to_read(location, Observer(), refusal=InputError))
    return TokenFolder(FolderStore(Path(location)))


def is_address(location: str | Path) -> TypeGuard[str]:
    """Tell whether a location is an address, and not the path of something on this machine."""
    return isinstance(location, str) and is_url(location)
