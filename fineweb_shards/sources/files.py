"""Turn `--input` into a list of files, each with its format, found by its name, and a hash of samples.

Those of `--val-input` come first: so validation is the beginning of the stream, as by most other rules.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shlex
import stat
import sysconfig
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fineweb_shards.errors import BadFileError, InputError, UsageError, closest
from fineweb_shards.formats.registry import BY_ENDING, FORMATS, TEXT, split_suffixes
from fineweb_shards.formats.text_samples import (
    HEAD_BYTES,
    SAMPLE_BYTES,
    check_is_text,
    convert_hint,
    detect_separator,
    guess_encoding,
    sample_offsets,
)
from fineweb_shards.sources.discovery import (
    Findings,
    OpenBucket,
    check_odd_files,
    find_objects,
    spells_ending,
    walk_folder,
    walk_glob,
)
from fineweb_shards.storage.bucket import Bucket, content_hash
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.storage.bucket_requests import ObjectInfo
from fineweb_shards.storage.local import LocalPlace, open_pipe
from fineweb_shards.storage.place import BUCKET, LOCAL, STANDARD_INPUT, InputFile
from fineweb_shards.storage.streams import DamagedStreamError, open_unpacker

_SAMPLES = 8
_COMPARED_NAMES = 1000  # with a name that does not exist: each takes a tenth of a millisecond
_NOT_IN_THE_MANIFEST = (
    "index", "path", "format", "place", "problem", "is_pipe", "for_validation", "separator",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    name: str  # relative to the --input it was found by
    problem: str | None = None  # why it can't be read
    info: ObjectInfo | None = None  # of an object in a bucket
    for_validation: bool = False
    given: str = ""  # the flag and value that it was found by, if that stands for several files
    every: str = ""  # a glob for all of those, without an ending

    @property
    def flag(self) -> str:
        return "--val-input" if self.for_validation else "--input"

    @property
    def real_path(self) -> str:
        """The same for all names that lead to the file."""
        return self.path if self.path == STANDARD_INPUT or self.info else os.path.realpath(self.path)


def find_files(
    inputs: tuple[str, ...],
    format_name: str,
    is_output: Callable[[str], bool] = lambda path: False,
    *,
    is_earlier_output: Callable[[str], bool] = lambda path: False,
    val_inputs: tuple[str, ...] = (),
    skip_bad: bool = False,
    find_separators: bool = False,
    column: str = "text",
    note: Callable[[str], None] = lambda text: None,
    open_bucket: OpenBucket = Bucket,
) -> tuple[InputFile, ...]:
    """Find all files that the inputs name, in the order they will be read: first those of `val_inputs`, which
    are for validation only, even if an input names them as well.

    The program's own output is never input, even if --out is inside the input's folder, nor is that of
    another build. What can't be read is an error or, with `skip_bad`, a file with a problem. With
    `find_separators`, texts on this machine get what was found between their documents. `column` holds the
    documents of JSON lines. `note` is called with what was skipped, and what may be a mistake.
    """
    if not inputs:
        raise InputError(
            "There is no input.",
            "Name a sample (demo, sample-10BT), files, folders or globs, or a dataset with --dataset.",
        )
    search = _Search(format_name, is_output, is_earlier_output, note, open_bucket)
    for_validation = [replace(one, for_validation=True) for one in _find("--val-input", val_inputs, search)]
    others = _find("--input", inputs, search)
    found = for_validation + _without_validation(others, for_validation, note)
    described = _describe_all(found, format_name, find_separators, note)
    files = tuple(
        replace(file, for_validation=True) if one.for_validation else file
        for one, file in zip(found, described, strict=True)
    )
    if format_name == "auto":
        check_odd_files(
            [(one.given, one.every, file) for one, file in zip(found, files, strict=True)],
            column,
            skip_bad=skip_bad,
            note=note,
        )
    bad = [file.problem for file in files if file.problem is not None]
    if bad and not skip_bad:
        more = f" ({len(bad) - 1:,} more can't be read either.)" if len(bad) > 1 else ""
        raise BadFileError(f"{bad[0]}{more}")
    return files


@dataclass(frozen=True, slots=True)
class _Search:
    """How files are searched for."""

    format_name: str
    is_output: Callable[[str], bool]  # of this build
    is_earlier_output: Callable[[str], bool]  # of any other one
    note: Callable[[str], None]
    open_bucket: OpenBucket

    def is_made(self, path: str) -> bool:
        return self.is_output(path) or self.is_earlier_output(path)


def _find(flag: str, inputs: tuple[str, ...], search: _Search) -> list[_Found]:
    """Return the files that all values of a flag stand for, without what builds have made."""
    return [found for text in inputs for found in _without_outputs(flag, text, search)]


def _without_outputs(flag: str, text: str, search: _Search) -> list[_Found]:
    """Return the files that one value of a flag stands for, without what builds have made; note what another
    one has made."""
    expanded = _expand(flag, text, search)
    others = [one for one in expanded if not search.is_output(one.path)]
    earlier = [one for one in others if search.is_earlier_output(one.path)]
    found = [one for one in others if not search.is_earlier_output(one.path)]
    if earlier and not found:
        folder = os.path.dirname(earlier[0].path) or os.curdir
        raise InputError(
            f"{flag} {text}: these are shards that a build has made, with their manifest, and no texts.",
            "Nothing has to be built to train on them. To copy them into another layout or size: "
            f"fineweb-shards export {shlex.quote(folder)} --layout NAME --out FOLDER",
        )
    if expanded and not found:
        raise InputError(f"{flag} {text}: holds only our own output.", f"Check {flag} and --out.")
    if earlier:
        names = _first_few([one.name for one in earlier])
        search.note(f"{flag} {text}: {_count(earlier)} skipped, made by an earlier build: {names}")
    return found


def _without_validation(
    others: list[_Found], for_validation: list[_Found], note: Callable[[str], None]
) -> list[_Found]:
    """Return the files that are not for validation; note which ones are."""
    if not for_validation:
        return others
    taken = {one.real_path for one in for_validation}
    shared = [one.name for one in others if one.real_path in taken]
    if shared:
        note(f"--val-input: {_count(shared)} of --input for validation only: {_first_few(shared)}")
    return [one for one in others if one.real_path not in taken]


def _expand(flag: str, text: str, search: _Search) -> list[_Found]:
    """Return the files that one value of a flag stands for. A file named directly is taken, whatever its
    ending."""
    if text == STANDARD_INPUT:
        return [_Found(STANDARD_INPUT, STANDARD_INPUT)]
    if not text.strip():
        raise UsageError(
            f"{flag} is empty; perhaps a variable of the shell is not set.",
            f"Name a file, a folder or a glob; the current folder is {flag} .",
        )
    if is_url(text):
        return _expand_url(flag, text, search)
    text = text.replace("{stdlib}", sysconfig.get_path("stdlib"))
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path):
        return [_Found(str(path), path.name)]
    if _is_fifo(path):  # a fixed name, because a shell's <(…) has another number every time
        return [_Found(str(path), "pipe" if path.parent.name == "fd" else path.name)]
    if os.path.isdir(path):
        any_ending, findings = False, walk_folder(str(path))
    elif glob.has_magic(text):
        pattern = os.path.expanduser(text)
        any_ending, findings = spells_ending(pattern), walk_glob(pattern)
    else:
        raise _missing_error(f"{flag} {text}", path)
    return _take(flag, text, findings, search, any_ending=any_ending, is_folder=os.path.isdir(path))


def _expand_url(flag: str, text: str, search: _Search) -> list[_Found]:
    """Return the objects in a bucket that one value of a flag stands for."""
    found = find_objects(text, search.open_bucket)
    if found.is_one:
        taken = [_Found(found.path_of(name), name) for name in found.files]
    elif not found.files and found.is_folder:
        raise InputError(f"{flag} {text}: there is no such object or folder.", "Check the address.")
    else:
        any_ending = not found.is_folder and spells_ending(text)
        taken = _take(flag, text, found, search, any_ending=any_ending, is_folder=found.is_folder)
    return [replace(one, info=found.objects[one.name]) for one in taken]


def _take(
    flag: str, text: str, findings: Findings, search: _Search, *, any_ending: bool, is_folder: bool
) -> list[_Found]:
    """Return the files that can be read, by their endings; note which ones are skipped."""
    given = f"{flag} {text}"
    every = f"{text.rstrip('/')}/**/*" if is_folder else f"{text.rpartition('/')[0] or os.curdir}/*"
    any_ending = any_ending or search.format_name != "auto"
    made = {name for name in findings.files if search.is_made(findings.path_of(name))}
    taken = [name for name in findings.files if any_ending or split_suffixes(name)[0] or name in made]
    skipped = sorted({*findings.files, *findings.not_files} - {*taken})
    if not taken and not findings.unreadable:
        raise _no_file_error(given, skipped, is_folder=is_folder)
    if skipped:
        kind = "unsupported file type" if findings.not_files else "unknown ending"
        search.note(f"{given}: {_count(skipped)} skipped: {kind}: {_first_few(skipped)}")
    if findings.repeated_folders:
        folders = _first_few(sorted(findings.repeated_folders))
        search.note(f"{given}: not followed, because it leads to a folder that is read anyway: {folders}")
    problems = {name: f"{findings.path_of(name)}: {why}." for name, why in findings.unreadable.items()}
    names = sorted({*taken, *problems})
    return [
        _Found(findings.path_of(name), name, problems.get(name), given=given, every=every) for name in names
    ]


def _no_file_error(given: str, skipped: list[str], *, is_folder: bool) -> InputError:
    if skipped and not is_folder:
        return InputError(
            f"{given}: none of what matches has a known ending: {_first_few(skipped)}.",
            f"Known are {', '.join(BY_ENDING)}; say what the files are with --format.",
        )
    if not is_folder:
        return InputError(f"{given}: no file matches.", "Check the pattern (and quote it).")
    there = f"; there is {_first_few(skipped)}" if skipped else ""
    return InputError(
        f"{given}: the folder holds no {', '.join(BY_ENDING)} file (with .gz or .zst, or without){there}.",
        "Name the files with a glob, or say what they are with --format.",
    )


def _is_fifo(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _missing_error(given: str, path: Path) -> InputError:
    """Return an error that says why a path is neither a file nor a folder, with what was probably meant, or
    what is there instead."""
    can_be_read = "Name a file, a folder or a glob that can be read."
    try:
        os.stat(path)
        return InputError(f"{given}: neither a file nor a folder.", can_be_read)
    except FileNotFoundError:
        if os.path.islink(path):
            return InputError(f"{given}: a link to {os.readlink(path)}, which does not exist.", can_be_read)
    except OSError as error:
        return InputError(f"{given}: {(error.strerror or str(error)).lower()}.", can_be_read)
    missing = next((one for one in reversed(path.parents) if not os.path.isdir(one)), None)
    if missing is not None:
        return InputError(f"{given}: no such file or folder.", f"There is no folder {missing}, either.")
    folder = path.parent
    names = sorted(os.listdir(folder)) if os.access(folder, os.R_OK) else []
    here = "The current folder" if folder == Path() else str(folder)
    there = f"{here} has {_first_few(names)}." if names else f"{here} is empty, or can't be read."
    match = closest(path.name, names[:_COMPARED_NAMES])
    hint = f"Did you mean {folder / match}?" if match else there
    return InputError(f"{given}: no such file or folder.", hint)


def _count(names: Sized) -> str:
    return f"{len(names):,} file{'s'[: len(names) != 1]}"


def _first_few(names: list[str]) -> str:
    return ", ".join(readable_name(name) for name in names[:3]) + (", …" if len(names) > 3 else "")


def readable_name(name: str) -> str:
    """Return a file's name as valid text, reversibly: `\\xff` stands for a byte that is no UTF-8, and `\\x5c`
    for a backslash that would look like such an escape."""
    return os.fsencode(name).replace(b"\\x", b"\\x5cx").decode("utf-8", "backslashreplace")


def _describe_all(
    found: Sequence[_Found], format_name: str, find_separators: bool, note: Callable[[str], None]
) -> list[InputFile]:
    """Describe files; note which ones seem to be in another encoding than UTF-8."""
    files: list[InputFile] = []
    foreign: list[tuple[InputFile, str]] = []
    for index, one in enumerate(found):
        file, samples = _describe(index, one, format_name)
        if samples and FORMATS[file.format].is_text and _is_text(file, samples[0]):
            if encoding := guess_encoding(samples):
                foreign.append((file, encoding))
            if find_separators and file.format == TEXT:
                file = replace(file, separator=detect_separator(samples))
        files.append(file)
    if foreign:
        (file, encoding), others = foreign[0], len(foreign) - 1
        more = f" (so are {others:,} more files)" if others else ""
        note(
            f"{file.path}: no UTF-8, but perhaps {encoding}{more}: what is no UTF-8 becomes U+FFFD. "
            f"{convert_hint(file, encoding)}"
        )
    return files


def _is_text(file: InputFile, head: bytes) -> bool:
    """Tell whether a file will not be refused when it is its turn."""
    try:
        check_is_text(file, head[:SAMPLE_BYTES])
    except BadFileError:
        return False
    return True


def _describe(index: int, found: _Found, format_name: str) -> tuple[InputFile, list[bytes]]:
    """Return a file, and samples of its content if it is on this machine; the first is its beginning."""
    path, name = found.path, readable_name(found.name)
    known, compression = split_suffixes(found.name)
    kind = (known or TEXT) if format_name == "auto" else format_name
    is_named = found.info is None and not found.given  # a folder and a glob stand for regular files
    if path == STANDARD_INPUT or (is_named and _is_fifo(Path(path))):
        return _describe_pipe(index, found, kind, compression)
    if compression and not FORMATS[kind].is_text:
        raise InputError(f"{path}: compressed {kind} can't be read.", "Unpack it first.")
    if found.info is not None:
        size, etag = found.info.size_bytes, content_hash(found.info)
        return InputFile(index, path, name, kind, compression, size, 0, etag, place=BUCKET), []
    problem = found.problem
    if problem is None:
        try:
            with open(path, "rb") as content:
                status = os.fstat(content.fileno())
                samples = _read_samples(content, status.st_size)
                head = samples[0]
                if kind == TEXT and status.st_size > SAMPLE_BYTES:  # the more, the better for separators
                    content.seek(0)
                    head = content.read(HEAD_BYTES)
        except OSError as error:
            problem = f"{path}: {error.strerror}."
    if problem is not None:
        return InputFile(index, path, name, kind, compression, 0, 0, "", problem), []
    digest = hashlib.sha256(b"".join(samples)).hexdigest()
    file = InputFile(index, path, name, kind, compression, status.st_size, status.st_mtime_ns, digest)
    return file, [_unpack_head(file)] if compression else [head, *samples[1:]]


def _describe_pipe(
    index: int, found: _Found, kind: str, compression: str | None
) -> tuple[InputFile, list[bytes]]:
    path, name = found.path, readable_name(found.name)
    if compression or not FORMATS[kind].is_text:
        source = "standard input" if path == STANDARD_INPUT else "a pipe"
        raise InputError(
            f"{found.flag} {path}: {compression or kind} can't be read from {source}.",
            "Name the file instead, or send its text (zcat, zstdcat).",
        )
    head = open_pipe(path).head
    digest = hashlib.sha256(head).hexdigest()
    return InputFile(index, path, name, kind, None, 0, 0, digest, is_pipe=True), [head]


def _read_samples(content: BinaryIO, size: int) -> list[bytes]:
    """Return a few parts of a file, including its beginning and end."""
    samples = []
    for offset in sample_offsets(size, _SAMPLES):
        content.seek(offset)
        samples.append(content.read(SAMPLE_BYTES))
    return samples


def _unpack_head(file: InputFile) -> bytes:
    """Return the beginning of a compressed file's text; of a damaged one what can be read, because the damage
    is reported when it is its turn."""
    head = bytearray()
    with (
        contextlib.suppress(DamagedStreamError, OSError),
        contextlib.closing(open_unpacker(partial(LocalPlace().stream, file), file.compression or "")) as text,
    ):
        while len(head) < HEAD_BYTES and (data := text.read(HEAD_BYTES)):
            head += data
    return bytes(head)


def files_to_json(files: tuple[InputFile, ...]) -> list[dict[str, Any]]:
    """Describe the files for the manifest: without paths, which differ on another machine, and mostly without
    formats, which follow from names and settings (a file of the hub may be streamed or downloaded)."""
    kept = [field.name for field in fields(InputFile) if field.name not in _NOT_IN_THE_MANIFEST]
    return [
        {name: getattr(file, name) for name in kept}
        # A folder that an earlier version began must not resume with CSV that it has read as text.
        | ({"format": file.format} if FORMATS[file.format].was_text and file.place == LOCAL else {})
        | ({"for_validation": True} if file.for_validation else {})
        | ({"separator": file.separator} if file.separator else {})
        for file in files
    ]
