"""Turn `--input` into a list of files, with formats and hashes of samples; on a resume, compare it with the manifest.

The files of `--val-input` come first, so that validation is the beginning of the stream, as with most other rules.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fineweb_shards.errors import BadFileError, ChangedError, InputError
from fineweb_shards.formats.registry import FORMATS, TEXT, split_suffixes
from fineweb_shards.formats.text_samples import (
    HEAD_BYTES,
    SAMPLE_BYTES,
    check_is_text,
    detect_separator,
    sample_offsets,
)
from fineweb_shards.sources.discovery import Found, OpenBucket, Search, find_inputs, readable_name
from fineweb_shards.storage.bucket import is_web, open_remote
from fineweb_shards.storage.bucket_requests import content_hash
from fineweb_shards.storage.local import open_pipe
from fineweb_shards.storage.place import BUCKET, LOCAL, STANDARD_INPUT, WEB, InputFile
from fineweb_shards.units import first_few, show_number_of

_SAMPLES = 8
_RECORDED = ("name", "compression", "size_bytes", "mtime_ns", "content_hash")  # in the manifest
_Record = dict[str, Any]  # a file in the manifest


def find_files(
    inputs: tuple[str, ...],
    format_name: str,
    is_output: Callable[[str], bool] = lambda path: False,
    *,
    is_earlier_output: Callable[[str], bool] = lambda path: False,
    val_inputs: tuple[str, ...] = (),
    skip_bad: bool = False,
    find_separators: bool = False,
    note: Callable[[str], None] = lambda text: None,
    open_bucket: OpenBucket = open_remote,
) -> tuple[InputFile, ...]:
    """Find all input files, in reading order: first those of `val_inputs`, which are for validation only, even if
    `inputs` names them as well. A file that can't be read is an error or, with `skip_bad`, has a `problem`. With
    `find_separators`, the separators of local texts are detected. `note` receives messages about skipped files."""
    if not inputs:
        raise InputError(
            "There is no input.",
            "Name a sample (demo, sample-10BT), files, folders or globs, or a dataset with --dataset.",
        )
    search = Search(format_name, is_output, is_earlier_output, note, open_bucket)
    found = [replace(one, for_validation=True) for one in find_inputs("--val-input", val_inputs, search)]
    taken = {one.real_path for one in found}
    others = find_inputs("--input", inputs, search)
    shared = [readable_name(one.name) for one in others if taken and one.real_path in taken]
    if shared:
        count = show_number_of(len(shared), "file")
        note(f"--val-input: {count} of --input for validation only: {first_few(shared)}")
    found += [one for one in others if not taken or one.real_path not in taken]
    files: list[InputFile] = []
    for index, one in enumerate(found):
        file, samples = _describe(index, one, format_name)
        if find_separators and samples and file.format == TEXT:
            with contextlib.suppress(BadFileError):  # raised again when the file is read
                check_is_text(file, samples[0][:SAMPLE_BYTES])
                file = replace(file, separator=detect_separator(samples))
        files.append(file)
    bad = [file.problem for file in files if file.problem is not None]
    if bad and not skip_bad:
        more = f" ({len(bad) - 1:,} more can't be read either.)" if len(bad) > 1 else ""
        raise BadFileError(f"{bad[0]}{more}")
    return tuple(files)


def _describe(index: int, found: Found, format_name: str) -> tuple[InputFile, list[bytes]]:
    """Return a file and, if it is local and not compressed, samples of its content; the first is its beginning."""
    path = found.path
    known, compression = split_suffixes(found.name)
    kind = (known or TEXT) if format_name == "auto" else format_name
    file = InputFile(
        index, path, readable_name(found.name), kind, compression, 0, 0, "", found.problem,
        is_pipe=found.is_pipe, for_validation=found.for_validation,
    )  # fmt: skip
    if found.is_pipe:
        if compression or not FORMATS[kind].is_text:
            flag = "--val-input" if found.for_validation else "--input"
            source = "standard input" if path == STANDARD_INPUT else "a pipe"
            raise InputError(
                f"{flag} {path}: {compression or kind} can't be read from {source}.",
                "Name the file instead, or send its text (zcat, zstdcat).",
            )
        head = open_pipe(path).head
        return replace(file, content_hash=hashlib.sha256(head).hexdigest()), [head]
    if compression and not FORMATS[kind].is_text:
        raise InputError(f"{path}: compressed {kind} can't be read.", "Unpack it first.")
    if found.info is not None:
        size, etag = found.info.size_bytes, content_hash(found.info)
        return replace(file, size_bytes=size, content_hash=etag, place=WEB if is_web(path) else BUCKET), []
    if file.problem is not None:
        return file, []
    try:
        with open(path, "rb") as content:
            status = os.fstat(content.fileno())
            head = content.read(HEAD_BYTES if kind == TEXT else SAMPLE_BYTES)  # detecting separators takes more
            samples = [head[:SAMPLE_BYTES]]  # a few parts of it, including its beginning and end
            for offset in sample_offsets(status.st_size, _SAMPLES)[1:]:
                content.seek(offset)
                samples.append(content.read(SAMPLE_BYTES))
    except OSError as error:
        return replace(file, problem=f"{path}: {error.strerror}."), []
    digest = hashlib.sha256(b"".join(samples)).hexdigest()
    file = replace(file, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, content_hash=digest)
    return file, [] if compression else [head, *samples[1:]]


# The files in the manifest, and whether they are unchanged on a resume

_SAMPLED = re.compile("[0-9a-f]{64}")  # the hash of a file's samples
# Hashes that depend only on the content: of samples, git's, and the MD5 that is the ETag of an object uploaded in one
# piece. Any other ETag may differ for a copy.
_OF_CONTENT = (_SAMPLED, re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{32}"))
_RESTORE_HINT = "Restore the input as it was, or start over with what it is now: another --out, or --fresh."


def files_to_json(files: tuple[InputFile, ...]) -> list[_Record]:
    """Describe the files for the manifest: without paths, which differ between machines, and mostly without formats,
    which follow from names and settings (a file on the hub may be streamed or downloaded)."""
    return [
        {name: getattr(file, name) for name in _RECORDED}
        # A resume must notice that an earlier version read this CSV as text.
        | ({"format": file.format} if FORMATS[file.format].was_text and file.place == LOCAL else {})
        | ({"for_validation": True} if file.for_validation else {})
        | ({"separator": file.separator} if file.separator else {})
        for file in files
    ]


def check_same_files(files: tuple[InputFile, ...], recorded: list[_Record], *, same_source: bool) -> None:
    """Raise ChangedError if the files are not those in the manifest. Size and samples don't reveal every change. So a
    different modification time is refused as well, and so are hashes that can't be compared, unless the user vouches
    for a copy (`same_source`)."""
    _check_same_names(files, recorded)
    for file, new, old in zip(files, files_to_json(files), recorded, strict=True):
        # A resume takes separators from the manifest.
        different = {name for name in new if name != "separator" and new[name] != old.get(name)}
        if _is_of_store(old):  # recorded without a format, and never read as text by an earlier version
            different.discard("format")
        if not different:
            continue
        # A copy may differ in date and ETag, unless comparable hashes prove another content.
        hashes = new["content_hash"], old.get("content_hash", "")
        proven = not all(hashes) or any(all(map(kind.fullmatch, hashes)) for kind in _OF_CONTENT)
        may_be_copy = different <= {"mtime_ns", "content_hash"} and not proven
        if different != {"mtime_ns"} and not may_be_copy:
            raise ChangedError(f"{file.path}: {_describe_change(file, different, old)}.", _RESTORE_HINT)
        if not same_source:
            doubt = (
                "the file or object that these shards were begun with has another kind of hash, so they can't be "
                "compared"
            )
            if different == {"mtime_ns"}:
                then, now = _show_time(old["mtime_ns"]), _show_time(new["mtime_ns"])
                doubt = f"the file was modified on {now}; when these shards were begun, its date was {then}"
            elif _is_of_store(new) and _is_of_store(old):
                doubt = "it has another ETag than when these shards were begun, as a copy may have, or other content"
            raise ChangedError(
                f"{file.path}: {doubt}. Its size is the same.",
                "If it is a copy of the same file, resume with --same-source. If not, restore the old file, "
                "or start over: another --out, or --fresh.",
            )


def _check_same_names(files: tuple[InputFile, ...], recorded: list[_Record]) -> None:
    """Raise ChangedError if the files, their order, or those for validation differ."""
    now = [f"{file.name} of --val-input" if file.for_validation else file.name for file in files]
    before = [f"{old['name']} of --val-input" if old.get("for_validation") else str(old["name"]) for old in recorded]
    if now == before:
        return
    differences = {"new": Counter(now) - Counter(before), "missing": Counter(before) - Counter(now)}
    changes = [f"{len(names):,} {what} ({first_few([*names])})" for what, names in differences.items() if names]
    if changes:
        different = f"other files than when these shards were begun: {' and '.join(changes)}"
    else:
        number = next(i for i, (name, old) in enumerate(zip(now, before, strict=True)) if name != old)
        was, is_now = before[number], now[number]
        different = f"another order than when these shards were begun: number {number + 1:,} was {was} and is {is_now}"
    raise ChangedError(f"The input has {different}.", _RESTORE_HINT)


def _is_of_store(record: _Record) -> bool:
    """Return whether a record describes an object in a bucket, by its ETag."""
    found = record.get("content_hash", "")
    return bool(found) and not _SAMPLED.fullmatch(found)


def _describe_change(file: InputFile, different: set[str], old: _Record) -> str:
    if "format" in different:
        return f"an earlier version, which began these shards, read it as text; now it is {file.format}"
    if file.is_pipe:
        return "standard input begins with other bytes than when these shards were begun"
    if file.problem is not None:
        return "it could be read when these shards were begun, and can't be now"
    if not old.get("content_hash"):
        return "it could not be read when these shards were begun, and can be now"
    size, date = old.get("size_bytes", 0), f" (modified on {_show_time(file.mtime_ns)})" if file.mtime_ns else ""
    if file.size_bytes != size:
        change = "grown" if file.size_bytes > size else "shrunk"
        return f"the file has {change} from {size:,} to {file.size_bytes:,} bytes since these shards were begun{date}"
    return f"the file has other content than when these shards were begun, in the same size{date}"


def _show_time(mtime_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mtime_ns / 1e9))
