"""Save `manifest.json` durably, and load it; a damaged one, or one of another program, is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError, DamageError, OutputError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_checks import check_manifest
from fineweb_shards.store.manifest_text import FORMAT_VERSION, ManifestText, checksum_of
from fineweb_shards.store.manifest_vocabulary import check_dtype, vocabulary_of
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import WORK_FOLDER, is_lock_name, output_error
from fineweb_shards.system.json_values import expect, get, make, parse_object
from fineweb_shards.system.own_files import read_file
from fineweb_shards.types import Quarantined, ShardRecord
from fineweb_shards.units import show_number_of

FILE_NAME = "manifest.json"
MOST_BYTES = 256 * 2**20  # that of FineWeb-Edu's 2,410 files has 7.5 MB at the end; a million files fit
# Formats that can be read; a folder that was begun with an older one is saved in the newest.
_READABLE_FORMATS = (2, FORMAT_VERSION)
_RENAMED_SINCE_2 = {"inside": "starts_mid_document", "wrong_claims": "token_count_mismatches"}
_FIELDS = (
    "checksum", "vocabulary", "settings", "commit", "versions", "totals", "effort", "quarantined", "shards",
    "files", "complete",
)  # fmt: skip


class ManifestFile:
    """The manifest of a store, for a run that saves it often."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._text = ManifestText()

    def save(self, manifest: Manifest) -> None:
        """Replace the store's manifest durably."""
        data = self._text.make(manifest, self._store.run_id)
        if len(data) > MOST_BYTES:  # nobody would read it
            files = show_number_of(len(manifest.files), "input file")
            raise OutputError(
                f"{self._store.location}/{FILE_NAME}: {len(data):,} bytes for {files} and "
                f"{show_number_of(manifest.shard_count, 'shard')}; at most {MOST_BYTES:,} are read.",
                "Join small input files, or raise --shard-tokens.",
            )
        self._store.save_manifest(data)


def save_manifest(manifest: Manifest, store: Store) -> None:
    """Replace the store's manifest durably."""
    ManifestFile(store).save(manifest)


def load_manifest(folder: Path, location: str = "") -> Manifest | None:
    """Load the folder's manifest; None if there is none. `location` is what the user calls the folder, if it
    has copies of another one's files.

    Raises DamageError if it is damaged, OutputError if it is another program's.
    """
    path = folder / FILE_NAME
    try:
        data = read_file(path, MOST_BYTES, follow_links=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise output_error(path, error) from error
    return parse_manifest(data, folder, location)


def parse_manifest(data: bytes, folder: Path, location: str = "") -> Manifest:
    """Make a manifest of the content of a folder's file. Raises errors like `load_manifest`."""
    path = f"{location}/{FILE_NAME}" if location else str(folder / FILE_NAME)
    if not is_ours(folder, data):
        raise OutputError(
            f"{path}: this is not a manifest of fineweb-shards, but a file of another program.",
            "For a build, choose another --out. Nothing here was touched, and --fresh would not change that.",
        )
    try:
        return _manifest_from_json(path, folder, parse_object(data))
    except ValueError as error:
        raise DamageError(
            f"{path}: the manifest is damaged: {error}.",
            "Restore it from a copy, or choose another --out. Nothing here was touched: only the "
            "manifest says which files --fresh may delete.",
        ) from error


def find_manifest(store: Store) -> Manifest | None:
    """Load the manifest in the store's folder, which may be a copy; None if there is none."""
    return load_manifest(store.folder, store.location)


def require_manifest(store: Store) -> Manifest:
    """Load the store's manifest; if there is none, raise OutputError with the next step."""
    manifest = find_manifest(store)
    if manifest is None:
        raise missing_manifest_error(store)
    return manifest


def missing_manifest_error(store: Store) -> OutputError:
    """Return an error that says why a store has no manifest, with the next step."""
    folder, location = store.folder, store.location
    if not folder.is_dir():
        here = (
            "this is a file, not a folder" if folder.exists() else "no such folder: nothing was built there"
        )
        return OutputError(f"{location}: {here}.", "Name the folder that was the --out of a `build`.")
    if (folder / WORK_FOLDER).is_dir() and (not store.is_remote or any((folder / WORK_FOLDER).iterdir())):
        return OutputError(
            f"{location}: nothing is built here yet: no run has come as far as its first {FILE_NAME}.",
            "Run the build command again, or wait if it was started a moment ago.",
        )
    if any(name != WORK_FOLDER for name in store.list_names()):
        return OutputError(
            f"{location}: nothing is built here: there is no {FILE_NAME} among its files.",
            "Name the folder that was the --out of a build, not its input.",
        )
    return OutputError(
        f"{location}: nothing is built here: there is no {FILE_NAME}.",
        f"Build something first: fineweb-shards build --input PATH --out {shlex.quote(location)}",
    )


def is_ours(folder: Path, data: bytes) -> bool:
    """Return whether a `manifest.json` was made by this program, even if it is damaged.

    Web applications and many others have a file of that name. Ours contains most of our fields, or is beside
    a work folder that a run has used.
    """
    if has_our_fields(data):
        return True
    try:
        return any(not is_lock_name(path.name) for path in (folder / WORK_FOLDER).iterdir())
    except OSError:
        return False


def has_our_fields(data: bytes) -> bool:
    """Return whether the content of a `manifest.json`, or its beginning, has most of our fields."""
    return sum(f'"{name}"'.encode() in data for name in _FIELDS) > len(_FIELDS) // 2


def _manifest_from_json(path: str, folder: Path, data: dict[str, Any]) -> Manifest:
    """Make a manifest from parsed JSON; ValueError if damaged, ChangedError if the format is unknown."""
    found = get(data, "format", int)
    if found not in _READABLE_FORMATS:
        readable = " and ".join(map(str, _READABLE_FORMATS))
        raise ChangedError(
            f"{path}: format {found}; this version of fineweb-shards reads {readable}.",
            "Use the version that made it, or another --out.",
        )
    recorded = data.pop("checksum", None)  # early manifests have none
    if recorded is not None and recorded != checksum_of(data):
        raise ValueError("its checksum does not fit; it was changed after it was written")
    if found == 2:
        data = _with_new_names(data)
    effort = expect("effort", data.get("effort", {}), dict)
    commit = data.get("commit")
    manifest = Manifest(
        settings=get(data, "settings", dict),
        files=get(data, "files", list),
        versions=get(data, "versions", dict),
        commit=None if commit is None else expect("commit", commit, str),
        shards=tuple(make(ShardRecord, record) for record in get(data, "shards", list)),
        complete=get(data, "complete", bool),
        totals=get(data, "totals", dict),
        quarantined=tuple(
            make(Quarantined, one) for one in expect("quarantined", data.get("quarantined", []), list)
        ),
        seconds=expect("seconds", effort.get("seconds", 0), float),
        peak_memory_bytes=expect("peak_memory_bytes", effort.get("peak_memory_bytes", 0), int),
        digits=expect("digits", data.get("digits", 0), int),
        vocabulary=vocabulary_of(data, folder / WORK_FOLDER),
        index=expect("index", data.get("index", False), bool),
    )
    check_manifest(manifest)
    check_dtype(data, manifest.shard_format)
    return manifest


def _with_new_names(value: Any) -> Any:
    """Return a manifest of format 2 with its fields renamed as in format 3."""
    if isinstance(value, list):
        return [_with_new_names(one) for one in value]
    if isinstance(value, dict):
        return {_RENAMED_SINCE_2.get(name, name): _with_new_names(one) for name, one in value.items()}
    return value
