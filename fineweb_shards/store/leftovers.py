"""What a killed run leaves behind in its folder, and nobody needs any more."""

from __future__ import annotations

import time
from pathlib import Path

from fineweb_shards.errors import OutputError
from fineweb_shards.store.files import growing_path
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import load_manifest
from fineweb_shards.store.megatron_index import index_path
from fineweb_shards.system.durable import WORK_FOLDER, output_error

# Somebody who makes a report may be writing one now, without our lock. That takes less than a second.
_LEFT_BEHIND_SECONDS = 600.0


def remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Temporary files that `manifest` does not go on with. The caller holds the folder's lock."""
    needed = {growing_path(folder / record.name) for record in manifest.shards}
    try:
        for path in (folder / WORK_FOLDER).glob("*.tmp"):
            if path not in needed and path.is_file() and not _may_be_in_use(path):
                path.unlink()
    except OSError as error:
        raise output_error(folder, error) from error


def remove_outdated_files(folder: Path, manifest: Manifest) -> None:
    """Files that the folder's own manifest names and `manifest` will make again. Before it is saved: later
    nobody could say whose they are."""
    before = load_manifest(folder)
    if before is None:
        return
    outdated = {record.name for record in before.shards} - {record.name for record in manifest.shards}
    try:
        for name in sorted(outdated):
            if before.layout.has_index:
                index_path(folder / name).unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise output_error(folder, error) from error


def tidy_finished(folder: Path, manifest: Manifest) -> None:
    """In a finished folder nothing depends on it: what can't be removed may stay."""
    try:
        remove_leftovers(folder, manifest)
    except OutputError:
        return  # a folder that may only be read


def _may_be_in_use(path: Path) -> bool:
    """Of the names that `write_quickly` gives: with a process and a thread in them."""
    numbers = path.name.split(".")[-3:-1]
    quick = len(numbers) == 2 and all(number.isdecimal() for number in numbers)
    return quick and time.time() - path.stat().st_mtime < _LEFT_BEHIND_SECONDS
