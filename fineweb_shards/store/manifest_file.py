"""`manifest.json`: the manifest on disk. Saved durably; one that is damaged, or not ours, is refused."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError, DamageError, OutputError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_checks import check_manifest
from fineweb_shards.store.manifest_vocabulary import check_dtype, vocabulary_of, vocabulary_to_json
from fineweb_shards.system.durable import LOCK_NAME, WORK_FOLDER, output_error, read_file, write_file
from fineweb_shards.system.json_values import expect, get, make, parse_object
from fineweb_shards.types import Quarantined, ShardRecord

FILE_NAME = "manifest.json"
FORMAT_VERSION = 3
# Manifests of these formats are read for good; a folder begun with one goes on, and is saved as the newest.
_READABLE_FORMATS = (2, FORMAT_VERSION)
_RENAMED_SINCE_2 = {"inside": "starts_mid_document", "wrong_claims": "token_count_mismatches"}
_FIELDS = (
    "checksum", "vocabulary", "settings", "commit", "versions", "totals", "effort", "quarantined", "shards",
    "files", "complete",
)  # fmt: skip


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Replace the folder's manifest, durably."""
    data = {
        "format": FORMAT_VERSION,
        "vocabulary": vocabulary_to_json(manifest.shard_format),
        "settings": manifest.settings,
        "commit": manifest.commit,
        "digits": manifest.digits,
        "versions": manifest.versions,
        "totals": manifest.totals,
        "effort": {
            "seconds": round(manifest.seconds, 3),
            "tokens_per_second": round(manifest.tokens / max(manifest.seconds, 1e-3)),
            "peak_memory_bytes": manifest.peak_memory_bytes,
        },
        "quarantined": [asdict(document) for document in manifest.quarantined],
        "shards": [asdict(shard) for shard in manifest.shards],
        "files": manifest.files,
        "complete": manifest.complete,  # last, so that the end of the file tells
    }
    text = json.dumps({"checksum": _checksum(data), **data}, indent=1, ensure_ascii=False) + "\n"
    # What is no valid text (half a surrogate in a file name) becomes JSON's own way of writing it.
    write_file(folder / FILE_NAME, text.encode("utf-8", "backslashreplace"), folder / WORK_FOLDER)


def load_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none. One that is damaged, or not ours, is refused."""
    path = folder / FILE_NAME
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise output_error(path, error) from error
    if not is_ours(folder, data):
        raise OutputError(
            f"{path}: this is not a manifest of fineweb-shards, but a file of another program.",
            "For a build, choose another --out. Nothing here was touched, and --fresh would not change that.",
        )
    try:
        return _manifest_from_json(path, parse_object(data))
    except ValueError as error:
        raise DamageError(
            f"{path}: the manifest is damaged: {error}.",
            "Restore it from a copy, or choose another --out. Nothing here was touched: without it "
            "nobody can say which files --fresh may delete.",
        ) from error


def require_manifest(folder: Path) -> Manifest:
    """The folder's manifest; where there is none, what to do about it."""
    manifest = load_manifest(folder)
    if manifest is None:
        raise nothing_built(folder)
    return manifest


def nothing_built(folder: Path) -> OutputError:
    """Why a folder has no manifest, and the next step."""
    if not folder.is_dir():
        here = (
            "this is a file, not a folder" if folder.exists() else "no such folder: nothing was built there"
        )
        return OutputError(f"{folder}: {here}.", "Name a folder made by `build`: what its --out says.")
    if (folder / WORK_FOLDER).is_dir():
        return OutputError(
            f"{folder}: nothing is built here yet: no run has come as far as its first {FILE_NAME}.",
            "Run the build command again, or wait if it was started a moment ago.",
        )
    return OutputError(
        f"{folder}: nothing is built here: there is no {FILE_NAME}.",
        f"Build something first: fineweb-shards build --input PATH --out {shlex.quote(str(folder))}",
    )


def is_ours(folder: Path, data: bytes) -> bool:
    """Whether a `manifest.json` is one of this program's, damaged perhaps: web applications and many others
    have a file of that name. Most of our fields are in it, or a run of ours has been at work here."""
    if sum(f'"{name}"'.encode() in data for name in _FIELDS) > len(_FIELDS) // 2:
        return True
    try:
        return any(path.name != LOCK_NAME for path in (folder / WORK_FOLDER).iterdir())
    except OSError:
        return False


def _manifest_from_json(path: Path, data: dict[str, Any]) -> Manifest:
    found = get(data, "format", int)
    if found not in _READABLE_FORMATS:
        raise ChangedError(
            f"{path}: format {found}; this version of fineweb-shards reads up to {FORMAT_VERSION}.",
            "Use the version that made it, or another --out.",
        )
    recorded = data.pop("checksum", None)  # not in manifests of the first versions
    if recorded is not None and recorded != _checksum(data):
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
        vocabulary=vocabulary_of(data),
    )
    check_manifest(manifest)
    check_dtype(data, manifest.shard_format)
    return manifest


def _with_new_names(value: Any) -> Any:
    """What a manifest of format 2 says, in the words of today."""
    if isinstance(value, list):
        return [_with_new_names(one) for one in value]
    if isinstance(value, dict):
        return {_RENAMED_SINCE_2.get(name, name): _with_new_names(one) for name, one in value.items()}
    return value


def _checksum(data: dict[str, Any]) -> str:
    """Of the values, not of the white space between them."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
