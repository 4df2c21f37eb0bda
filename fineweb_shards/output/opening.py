"""Open the store that --out names: a folder, or a bucket with a scratch folder on this machine. Explain why a store has
no manifest."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
import weakref
from pathlib import Path

from fineweb_shards.errors import OutputError, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.output.bucket_store import BucketStore
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import FILE_NAME, Manifest, find_manifest
from fineweb_shards.output.store import Store
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_address import BucketAddress, is_url
from fineweb_shards.system.own_files import WORK_FOLDER

READING_OUTAGE_SECONDS = 600.0  # how long a read-only command waits for a store that has responded before
_FIRST_OUTAGE_SECONDS = 20.0  # and for its first response: the user is waiting


def open_store(location: str, scratch: str, max_outage_seconds: float, observer: Observer) -> Store:
    """Open the store of a run. Nothing is read or written yet."""
    if not is_url(location):
        return FolderStore(Path(os.path.expanduser(location)))
    bucket = Bucket(location, max_outage_seconds, observer, refusal=OutputError)
    return BucketStore(bucket, scratch_folder(location, scratch))


def open_store_to_read(
    location: str, observer: Observer, max_outage_seconds: float | None = None, refusal: type[ShardError] = OutputError
) -> Store:
    """Open a store for reading. The small files of a bucket are copied into a temporary folder, which is removed with
    the store. `refusal` is the error class for failures that no retry would change. Without `max_outage_seconds`, the
    wait for the first response is shorter than later ones."""
    if not is_url(location):
        return FolderStore(Path(os.path.expanduser(location)))
    temporary = tempfile.TemporaryDirectory(prefix="fineweb-shards-")
    if max_outage_seconds is None:
        max_outage_seconds = READING_OUTAGE_SECONDS
        Bucket(location, _FIRST_OUTAGE_SECONDS, observer, refusal=refusal).head(FILE_NAME)
    bucket = Bucket(location, max_outage_seconds, observer, refusal=refusal)
    store = BucketStore(bucket, Path(temporary.name))
    weakref.finalize(store, temporary.cleanup)
    store.refresh()
    return store


def is_object(location: str) -> bool:
    """Return whether an address names an object, not a folder or bucket."""
    address = BucketAddress.parse(location)
    if not address.prefix:
        return False
    folder, _, name = str(address).rpartition("/")
    return Bucket(folder, READING_OUTAGE_SECONDS).head(name) is not None


def require_manifest(store: Store) -> Manifest:
    """Load the store's manifest; OutputError with the next step if there is none."""
    manifest = find_manifest(store)
    if manifest is None:
        raise missing_manifest_error(store)
    return manifest


def missing_manifest_error(store: Store) -> OutputError:
    """Return an error that explains why a store has no manifest, with the next step."""
    folder, work = store.folder, store.folder / WORK_FOLDER
    what = f"nothing is built here: there is no {FILE_NAME}"
    if not folder.is_dir():
        what = "this is a file, not a folder" if folder.exists() else "no such folder: nothing was built there"
        hint = "Name the folder that was the --out of a `build`."
    elif work.is_dir() and (not store.is_remote or any(work.iterdir())):
        what = f"nothing is built here yet: no run has saved its first {FILE_NAME}"
        hint = "Rerun the build command, or wait if it was started a moment ago."
    elif any(name != WORK_FOLDER for name in store.list_names()):
        what += " among its files"
        hint = "Name the folder that was the --out of a build, not its input."
    else:
        hint = f"Build something first: fineweb-shards build --input PATH --out {shlex.quote(store.location)}"
    return OutputError(f"{store.location}: {what}.", hint)


def cache_home() -> Path:
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "fineweb-shards"


def scratch_folder(location: str, scratch: str) -> Path:
    """Return the folder on this machine for unfinished files of a bucket or of another folder, one per address."""
    address = str(BucketAddress.parse(location)) if is_url(location) else os.path.realpath(location)
    parent = Path(os.path.expanduser(scratch)) if scratch else cache_home()
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", address.rpartition("://")[2])[-60:].strip("-.")
    return parent / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
