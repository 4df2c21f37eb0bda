"""Check on a resume that the input's files are those in the manifest; if not, say what has changed."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.sources.files import files_to_json
from fineweb_shards.storage.place import InputFile
from fineweb_shards.units import show_number_of

_Record = dict[str, Any]  # what the manifest has of a file
_SAMPLES = re.compile("[0-9a-f]{64}")  # the hash of a file's samples
# Hashes that follow from the content alone: of samples, git's, and the MD5 that is the ETag of an object
# which was sent in one piece. Any other ETag may be another one for a copy.
_OF_CONTENT = (_SAMPLES, re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{32}"))
_COPY_HINT = (
    "If it is a copy of the same file, resume with --same-source. If not, restore the old file, or start "
    "over: another --out, or --fresh."
)
_RESTORE_HINT = "Restore the input as it was, or start over with what it is now: another --out, or --fresh."


def check_same_files(files: tuple[InputFile, ...], recorded: list[_Record], *, same_source: bool) -> None:
    """Raise ChangedError if the files are not those that the manifest records.

    Size and samples don't show every change, so a different modification time is refused as well, and hashes
    that can't be compared, unless the user says that the file is a copy (`same_source`).
    """
    _check_same_validation(
        [file.name for file in files if file.for_validation],
        [str(old["name"]) for old in recorded if old.get("for_validation")],
    )
    _check_same_names([file.name for file in files], [str(old["name"]) for old in recorded])
    for file, new, old in zip(files, files_to_json(files), recorded, strict=True):
        different = _different_fields(new, old)
        if different and not _may_be_copy(different, new, old):
            raise ChangedError(f"{file.path}: {_describe_change(file, different, old)}.", _RESTORE_HINT)
        if different and not same_source:
            doubt = _describe_doubt(different, new, old)
            raise ChangedError(f"{file.path}: {doubt}. Its size is the same.", _COPY_HINT)


def _different_fields(new: _Record, old: _Record) -> list[str]:
    # A resume takes separators from the manifest, so they can't be different.
    different = [name for name in new if name != "separator" and new[name] != old.get(name)]
    if _is_of_store(old):  # such a record has no format, and no earlier version read it as text
        different = [name for name in different if name != "format"]
    return different


def _may_be_copy(different: list[str], new: _Record, old: _Record) -> bool:
    """Return whether all that is different may also differ between a file and its copy."""
    if different == ["mtime_ns"]:
        return True
    hashes = new["content_hash"], old.get("content_hash", "")
    proven = not all(hashes) or any(all(map(kind.fullmatch, hashes)) for kind in _OF_CONTENT)
    return {*different} <= {"mtime_ns", "content_hash"} and not proven


def _is_of_store(record: _Record) -> bool:
    """Return whether a record is of an object in a bucket, with its ETag."""
    found = record.get("content_hash", "")
    return bool(found) and not _SAMPLES.fullmatch(found)


def _describe_doubt(different: list[str], new: _Record, old: _Record) -> str:
    """Say why a file may be a copy of the one that the manifest records, or another one."""
    if different == ["mtime_ns"]:
        return (
            f"the file was modified on {_show_time(new['mtime_ns'])}; when these shards were begun, its date "
            f"was {_show_time(old['mtime_ns'])}"
        )
    if _is_of_store(new) and _is_of_store(old):
        return "it has another ETag than when these shards were begun, as a copy may have, or other content"
    places = ("a file", "an object in a bucket")
    return (
        f"these shards were begun with {places[_is_of_store(old)]} and this is {places[_is_of_store(new)]}, "
        "so that their hashes can't be compared"
    )


def _check_same_validation(now: list[str], before: list[str]) -> None:
    if now != before:
        raise ChangedError(
            f"--val-input was {_show_names(before)} when these shards were begun and is {_show_names(now)} "
            "now.",
            "Give the same --val-input, or start over: another --out, or --fresh.",
        )


def _check_same_names(now: list[str], before: list[str]) -> None:
    new, missing = ([*(Counter(a) - Counter(b))] for a, b in ((now, before), (before, now)))
    changes = [
        f"{len(names):,} {what} ({_first_few(names)})"
        for what, names in (("new", new), ("missing", missing))
        if names
    ]
    if changes:
        raise ChangedError(
            f"The input has other files than when these shards were begun: {' and '.join(changes)}.",
            _RESTORE_HINT,
        )
    for number, (name, old) in enumerate(zip(now, before, strict=True), 1):
        if name != old:
            raise ChangedError(
                f"The input's files come in another order than when these shards were begun: number "
                f"{number:,} was {old} and is {name}.",
                "Give --input in the old order, or start over: another --out, or --fresh.",
            )


def _show_names(names: list[str]) -> str:
    return f"{show_number_of(len(names), 'file')} ({_first_few(names)})" if names else "not set"


def _first_few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _describe_change(file: InputFile, different: list[str], old: _Record) -> str:
    """Describe how a file differs from the one that the manifest records."""
    size = old.get("size_bytes", 0)
    if "format" in different:
        return f"an earlier version, which began these shards, read it as text; now it is {file.format}"
    if file.is_pipe:
        return "standard input begins with other bytes than when these shards were begun"
    if file.problem is not None:
        return "it could be read when these shards were begun, and can't be now"
    if not old.get("content_hash"):
        return "it could not be read when these shards were begun, and can be now"
    date = f" (modified on {_show_time(file.mtime_ns)})" if file.mtime_ns else ""
    if file.size_bytes != size:
        change = "grown" if file.size_bytes > size else "shrunk"
        sizes = f"from {size:,} to {file.size_bytes:,} bytes"
        return f"the file has {change} {sizes} since these shards were begun{date}"
    return f"the file has other content than when these shards were begun, in the same size{date}"


def _show_time(mtime_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mtime_ns / 1e9))
