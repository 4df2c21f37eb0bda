"""Remove files that a killed run has left in its folder and that no run will use again."""

from __future__ import annotations

import time
from pathlib import Path

from fineweb_shards.errors import OutputError
from fineweb_shards.store.files import list_files
from fineweb_shards.store.manifest import Manifest, load_manifest
from fineweb_shards.store.sidecars import with_sidecars
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import output_error

# A `report` command may be writing such a file now, without the folder's lock; it takes less than a second.
_SURELY_UNUSED_SECONDS = 600.0


def remove_leftovers(store: Store, manifest: Manifest) -> None:
    """Remove temporary files that `manifest` does not continue. The caller must hold the store's lock."""
    recorded = {file.name: file.end_bytes for file in list_files(manifest.shards)}
    try:
        for path in store.leftovers(recorded):
            if path.is_file() and not _may_be_in_use(path):
                path.unlink()
        store.remove_unrecorded(recorded)
    except OSError as error:
        raise output_error(store.folder, error) from error


def remove_outdated_files(store: Store, manifest: Manifest) -> None:
    """Remove files that the store's saved manifest names and `manifest` does not: they will be made again.

    This must happen before `manifest` is saved: afterwards nothing would say that the files are ours.
    """
    before = load_manifest(store.folder)
    if before is None:
        return
    outdated = {record.name for record in before.shards} - {record.name for record in manifest.shards}
    try:
        store.remove(with_sidecars(before, outdated))
    except OSError as error:
        raise output_error(store.folder, error) from error


def tidy_finished(store: Store, manifest: Manifest) -> None:
    """Remove leftovers of a finished build; ignore errors, because nothing depends on it."""
    try:
        remove_leftovers(store, manifest)
    except OutputError:
        return  # for example a read-only folder


def _may_be_in_use(path: Path) -> bool:
    """Return whether a temporary file is recent and of `write_quickly` (named with process and thread)."""
    numbers = path.name.split(".")[-3:-1]
    quick = len(numbers) == 2 and all(number.isdecimal() for number in numbers)
    return quick and time.time() - path.stat().st_mtime < _SURELY_UNUSED_SECONDS
