"""Expand each value of `--input` (a file, folder, glob, pipe, or address in a bucket) to files; report skipped ones.

A folder is the glob `**/*`. Links to folders are followed, but every folder is read only once, under whichever name: a
link to a parent folder causes no loop, and one to a sibling no duplicates.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import heapq
import os
import shlex
import stat
import sysconfig
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from pathlib import Path, PurePosixPath

from fineweb_shards.errors import InputError, UsageError, closest
from fineweb_shards.formats.registry import BY_ENDING, split_suffixes
from fineweb_shards.storage.bucket import Bucket, is_web, open_remote, parse_address
from fineweb_shards.storage.bucket_address import BucketAddress, is_url, split_glob
from fineweb_shards.storage.bucket_requests import ObjectInfo
from fineweb_shards.storage.place import STANDARD_INPUT
from fineweb_shards.units import first_few, show_number_of

OpenBucket = Callable[[str], Bucket]
_ANY_DEPTH = "**"
_COMPARED_NAMES = 1000  # for "Did you mean": 0.1 ms each
_Rest = tuple[str, ...]  # the parts of a pattern still to be matched
_FOLDER_PATTERN: _Rest = (_ANY_DEPTH, "*")  # equivalent to a folder


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    name: str  # relative to the --input
    problem: str | None = None  # why it can't be read
    info: ObjectInfo | None = None  # of an object in a bucket
    is_pipe: bool = False
    for_validation: bool = False

    @property
    def real_path(self) -> str:
        """One path for all names of the file."""
        return self.path if self.path == STANDARD_INPUT or self.info else os.path.realpath(self.path)


@dataclass(frozen=True, slots=True)
class Search:
    format_name: str
    is_output: Callable[[str], bool] = lambda path: False  # of this build
    is_earlier_output: Callable[[str], bool] = lambda path: False  # of any other build
    note: Callable[[str], None] = lambda text: None
    open_bucket: OpenBucket = open_remote


def find_inputs(flag: str, inputs: tuple[str, ...], search: Search) -> list[Found]:
    """Expand all values of a flag, without the output of builds; report that of other builds."""
    taken: list[Found] = []
    for text in inputs:
        expanded = _expand(flag, text, search)
        others = [one for one in expanded if not search.is_output(one.path)]
        earlier = [one for one in others if search.is_earlier_output(one.path)]
        found = [one for one in others if not search.is_earlier_output(one.path)]
        if expanded and not found:
            folder = os.path.dirname(expanded[0].path) or os.curdir
            raise InputError(
                f"{flag} {text}: these are the shards of a build, with their manifest, not texts.",
                "They are ready to train on. To copy them into another layout or size: "
                f"fineweb-shards export {shlex.quote(folder)} --layout NAME --out FOLDER",
            )
        if earlier:
            count, names = show_number_of(len(earlier), "file"), first_few([readable_name(one.name) for one in earlier])
            search.note(f"{flag} {text}: {count} skipped, made by an earlier build: {names}")
        taken += found
    return taken


def readable_name(name: str) -> str:
    """Return a file's name as valid text, reversibly: `\\xff` stands for a byte that is not UTF-8, and `\\x5c` for a
    backslash that would look like such an escape."""
    return os.fsencode(name).replace(b"\\x", b"\\x5cx").decode("utf-8", "backslashreplace")


def _expand(flag: str, text: str, search: Search) -> list[Found]:
    """Expand one value of a flag. A file named directly is taken, whatever its extension."""
    if text == STANDARD_INPUT:
        return [Found(STANDARD_INPUT, STANDARD_INPUT, is_pipe=True)]
    if not text.strip():
        raise UsageError(
            f"{flag} is empty; perhaps a shell variable is not set.",
            f"Name a file, a folder or a glob; the current folder is {flag} .",
        )
    if is_url(text):
        return _expand_url(flag, text, search)
    text = text.replace("{stdlib}", sysconfig.get_path("stdlib"))
    path = Path(os.path.expanduser(text))
    why = "neither a file nor a folder"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        mode, why = 0, _why_unreadable(path, error)
    if stat.S_ISREG(mode):
        return [Found(str(path), path.name)]
    if stat.S_ISFIFO(mode):  # a fixed name, because the number of a shell's <(…) changes every time
        return [Found(str(path), "pipe" if path.parent.name == "fd" else path.name, is_pipe=True)]
    is_folder = stat.S_ISDIR(mode)
    if not is_folder and not glob.has_magic(text):
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = sorted(map(readable_name, os.listdir(path.parent)))[:_COMPARED_NAMES]
        match = closest(path.name, names)
        hint = f"Did you mean {path.parent / match}?" if match else "Name a file, a folder or a glob that can be read."
        raise InputError(f"{flag} {text}: {why}.", hint)
    root, pattern = str(path), _FOLDER_PATTERN
    if not is_folder:
        fixed = next(i for i, part in enumerate(path.parts) if glob.has_magic(part))
        root, pattern = str(Path(*path.parts[:fixed])), _with_files(path.parts[fixed:])
    return _take(flag, text, _walk(root, pattern), search, is_folder=is_folder)


def _expand_url(flag: str, text: str, search: Search) -> list[Found]:
    """Expand an address: an object, a folder, or a glob; on a web server one file. Stores have no folders: a common
    prefix counts as one, by the rules of local ones."""
    if is_web(text):
        file = parse_address(text).prefix
        info = search.open_bucket(text).head(file)
        if info is None:
            raise InputError(f"{flag} {text}: there is no such file on this server.", "Check the address.")
        return [Found(text, PurePosixPath(file).name, info=info)]
    folder, pattern = split_glob(text)
    is_folder = False
    if not any(letter in text for letter in "*?"):  # [ may be part of a name
        address = BucketAddress.parse(text)
        parent, _, name = address.prefix.rpartition("/")
        if name and not text.endswith("/"):
            above = BucketAddress(address.scheme, address.bucket, parent)
            info = search.open_bucket(str(above)).head(name)
            if info is not None:
                return [Found(f"{above}/{name}", name, info=info)]
        is_folder = not glob.has_magic(text)
        if is_folder:
            folder, pattern = address, _FOLDER_PATTERN
    listed = list(search.open_bucket(str(folder)).list())
    marked = {str(parent) for one in listed for parent in PurePosixPath(one.name).parents}
    wanted = _with_files(pattern)
    objects = {
        one.name: one
        for one in listed
        # Some programs mark a folder with an empty object.
        if (one.size_bytes or one.name not in marked) and _matches_glob(one.name, wanted)
    }
    if not objects and is_folder:
        raise InputError(f"{flag} {text}: there is no such object or folder.", "Check the address.")
    findings = _Findings(str(folder), sorted(objects), objects=objects)
    return _take(flag, text, findings, search, is_folder=is_folder)


def choose_paths(text: str, path: str, names: Collection[str], search: Search) -> list[str]:
    """Expand a path in a dataset by the same rules; `text` is its address, and `names` are the dataset's files."""
    if path in names:
        return [path]
    is_folder = not glob.has_magic(path)
    parts = tuple(path.split("/")) if path else ()
    pattern = (*parts, *_FOLDER_PATTERN) if is_folder else _with_files(parts)
    found = [name for name in sorted(names) if _matches_glob(name, pattern)]
    if is_folder and not found:
        raise InputError(f"--input {text}: there is no such file or folder in this dataset.", "Check the path.")
    return [one.name for one in _take("--input", text, _Findings(text, found), search, is_folder=is_folder)]


@dataclass
class _Findings:
    """The results of a walk or of a bucket's listing. Names are paths relative to the root."""

    root: str
    files: list[str] = field(default_factory=list)  # sorted, so that the order is the same on every machine
    unreadable: dict[str, str] = field(default_factory=dict)  # name to reason
    not_files: list[str] = field(default_factory=list)  # folders that match a glob, sockets and the like
    objects: dict[str, ObjectInfo] = field(default_factory=dict)  # in a bucket, by name

    def path_of(self, name: str) -> str:
        if is_url(self.root):
            return f"{self.root}/{name}"
        if name in ("", os.curdir):
            return self.root
        return name if self.root == os.curdir else os.path.join(self.root, name)


def _take(flag: str, text: str, findings: _Findings, search: Search, *, is_folder: bool) -> list[Found]:
    """Return the files with known extensions; report the skipped ones."""
    given = f"{flag} {text}"
    # A glob such as `*.log` fixes the extension itself.
    last = os.path.basename(text)
    ending = os.path.splitext(last)[1]
    spells_ending = not glob.has_magic(last) or (ending != "" and not glob.has_magic(ending))
    any_ending = search.format_name != "auto" or (spells_ending and not is_folder)
    paths = {name: findings.path_of(name) for name in findings.files}
    made = {name for name in paths if search.is_output(paths[name]) or search.is_earlier_output(paths[name])}
    taken = [name for name in paths if any_ending or split_suffixes(name)[0] or name in made]
    skipped = [readable_name(name) for name in sorted({*findings.files, *findings.not_files} - {*taken})]
    if not taken and not findings.unreadable:
        why, hint = "no file matches", "Check the pattern (and quote it)."
        if is_folder or skipped:
            why = f"holds no file with a known extension{': ' if skipped else ''}{first_few(skipped)}"
            hint = f"Known extensions: {', '.join(BY_ENDING)}, also with .gz or .zst; otherwise use --format."
        raise InputError(f"{given}: {why}.", hint)
    if skipped:
        count = show_number_of(len(skipped), "file")
        search.note(f"{given}: {count} skipped: unsupported file type: {first_few(skipped)}")
    problems = {name: f"{findings.path_of(name)}: {why}." for name, why in findings.unreadable.items()}
    names = sorted({*taken, *problems})
    return [Found(findings.path_of(name), name, problems.get(name), findings.objects.get(name)) for name in names]


def _why_unreadable(path: str | Path, error: OSError) -> str:
    if error.errno != errno.ENOENT:
        return error.strerror or str(error)
    return f"a link to {os.readlink(path)}, which does not exist" if os.path.islink(path) else "no such file or folder"


def _walk(root: str, pattern: _Rest) -> _Findings:
    """Find everything below a folder that matches a pattern."""
    findings = _Findings(root)
    folders = [(False, "", frozenset([pattern]))] if os.path.isdir(root) else []
    read: set[tuple[int, int, frozenset[_Rest]]] = set()
    while folders:
        _, folder, wanted = heapq.heappop(folders)  # links last, so that a folder is read under its own path
        path = findings.path_of(folder)
        try:
            status, heads = os.stat(path), {rest[0] for rest in wanted}
            if any(map(glob.has_magic, heads)):
                names = os.listdir(path)
            else:  # without listing the folder, which may be forbidden
                names = [part for part in heads if os.path.lexists(os.path.join(path, part))]
        except OSError as error:
            findings.unreadable[folder or "."] = f"the folder can't be read: {error.strerror}"
            continue
        key = (status.st_dev, status.st_ino, wanted)
        if key in read:
            continue
        read.add(key)
        for name in names:
            left = _advance(wanted, name)
            relative = f"{folder}/{name}" if folder else name
            below = findings.path_of(relative)
            try:
                mode = os.stat(below).st_mode if left else 0
            except OSError as error:
                findings.unreadable[relative] = _why_unreadable(below, error)
                continue
            if stat.S_ISDIR(mode) and left - {()}:
                heapq.heappush(folders, (os.path.islink(below), relative, left - {()}))
            elif () in left:
                (findings.files if stat.S_ISREG(mode) else findings.not_files).append(relative)
    findings.files.sort()
    return findings


def _with_files(pattern: _Rest) -> _Rest:
    """Return the pattern with each `**` once in a row; a final one means the files in all folders."""
    once = [part for before, part in pairwise(("", *pattern)) if (before, part) != (_ANY_DEPTH, _ANY_DEPTH)]
    return (*once, "*") if once[-1] == _ANY_DEPTH else tuple(once)


def _matches_glob(name: str, pattern: _Rest) -> bool:
    return () in reduce(_advance, name.split("/"), frozenset([pattern]))


def _advance(wanted: frozenset[_Rest], name: str) -> frozenset[_Rest]:
    """Return what is left of the patterns after the next part of a name, by the rules of the shell: no hidden files,
    and `**` matches any number of folders. The name matches if nothing is left of one of them."""
    wanted |= {rest[1:] for rest in wanted if rest[:1] == (_ANY_DEPTH,)}
    matching = [rest for rest in wanted if rest and _matches(name, rest[0])]
    return frozenset(rest if rest[0] == _ANY_DEPTH else rest[1:] for rest in matching)


def _matches(name: str, part: str) -> bool:
    if not glob.has_magic(part):
        return name == part
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == _ANY_DEPTH or fnmatch.fnmatch(name, part)
