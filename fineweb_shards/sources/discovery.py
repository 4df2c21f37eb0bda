"""Find the files that a folder or a glob stands for, and record everything that is not taken.

A folder is the glob `**/*`. Links to folders are followed, but every folder is read once, however many
names lead to it: a link to a parent folder makes no loop, and one to a sibling gives no document twice.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import json
import os
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fineweb_shards.errors import InputError
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_address import BucketAddress, split_glob
from fineweb_shards.storage.bucket_requests import ObjectInfo
from fineweb_shards.storage.place import InputFile

_ANY_DEPTH = "**"
FOLDER_PATTERN = (_ANY_DEPTH, "*")  # what a folder stands for
_Rest = tuple[str, ...]  # the parts of a pattern that are still to be matched


@dataclass
class Findings:
    """What a walk has found. Names are paths relative to its root."""

    root: str
    files: list[str] = field(default_factory=list)  # sorted, so that the order is the same on every machine
    unreadable: dict[str, str] = field(default_factory=dict)  # name to reason
    not_files: list[str] = field(default_factory=list)  # folders that a glob matches, sockets and the like
    repeated_folders: list[str] = field(default_factory=list)  # links to folders read under another name

    def path_of(self, name: str) -> str:
        if name in ("", os.curdir):
            return self.root
        return name if self.root == os.curdir else os.path.join(self.root, name)


def walk_folder(folder: str) -> Findings:
    """Find everything below a folder that is not hidden."""
    return _Walk(folder).run(FOLDER_PATTERN)


def walk_glob(pattern: str) -> Findings:
    """Find everything that matches a glob, by the rules of the shell; `**` is any number of folders."""
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return _Walk(str(Path(*parts[:fixed]))).run(with_files(parts[fixed:]))


def with_files(pattern: tuple[str, ...]) -> tuple[str, ...]:
    """Return a pattern that stands for files: `**` at its end means those in all folders."""
    return (*pattern, "*") if pattern[-1] == _ANY_DEPTH else pattern


def spells_ending(pattern: str) -> bool:
    """Tell whether a glob itself fixes the ending of its files, as `*.log` does."""
    name = os.path.basename(pattern)
    ending = os.path.splitext(name)[1]
    return not glob.has_magic(name) or (bool(ending) and not glob.has_magic(ending))


class _Walk:
    """One walk: the folders still to be read, and those that have been."""

    def __init__(self, root: str) -> None:
        self._findings = Findings(root)
        self._folders: list[tuple[str, frozenset[_Rest]]] = []
        self._links: list[tuple[str, frozenset[_Rest]]] = []
        self._read: set[tuple[int, int, frozenset[_Rest]]] = set()

    def run(self, pattern: _Rest) -> Findings:
        if os.path.isdir(self._findings.root):
            self._folders.append(("", frozenset([pattern])))
        while self._folders or self._links:
            if not self._folders:  # links last, so that a folder is named by its own path, not by a link's
                self._links.sort(key=lambda link: link[0], reverse=True)
                self._folders.append(self._links.pop())
            self._read_folder(*self._folders.pop())
        self._findings.files.sort()
        return self._findings

    def _read_folder(self, folder: str, wanted: frozenset[_Rest]) -> None:
        path = self._findings.path_of(folder)
        wanted |= {rest[1:] for rest in wanted if rest[0] == _ANY_DEPTH}
        try:
            status = os.stat(path)
            names = _names_in(path, {rest[0] for rest in wanted})
        except OSError as error:
            self._findings.unreadable[folder or "."] = f"the folder can't be read: {error.strerror}"
            return
        key = (status.st_dev, status.st_ino, wanted)
        if key in self._read:
            self._findings.repeated_folders.append(folder)
            return
        self._read.add(key)
        for name in names:
            self._visit(folder, name, wanted)

    def _visit(self, folder: str, name: str, wanted: frozenset[_Rest]) -> None:
        """Add an entry of a folder to the findings, or to the folders still to be read, if it matches."""
        matching = [rest for rest in wanted if _matches(name, rest[0])]
        deeper = frozenset(rest if rest[0] == _ANY_DEPTH else rest[1:] for rest in matching) - {()}
        if not matching:
            return
        name = f"{folder}/{name}" if folder else name
        path = self._findings.path_of(name)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            self._findings.unreadable[name] = _describe_failure(path, error)
            return
        taken = any(len(rest) == 1 for rest in matching)
        if stat.S_ISDIR(mode) and deeper:
            (self._links if os.path.islink(path) else self._folders).append((name, deeper))
        elif taken:
            (self._findings.files if stat.S_ISREG(mode) else self._findings.not_files).append(name)


def _names_in(folder: str, wanted: Iterable[str]) -> list[str]:
    """Return the names in a folder. If only fixed names are wanted, don't list it: that may be forbidden."""
    if any(glob.has_magic(part) for part in wanted):
        return os.listdir(folder)
    return [part for part in wanted if os.path.lexists(os.path.join(folder, part))]


def matches_glob(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether the parts of a name match those of a pattern, by the same rules as a walk."""
    if not pattern:
        return not name
    if pattern[0] == _ANY_DEPTH and matches_glob(name, pattern[1:]):
        return True
    if not name or not _matches(name[0], pattern[0]):
        return False
    return matches_glob(name[1:], pattern if pattern[0] == _ANY_DEPTH else pattern[1:])


def _matches(name: str, part: str) -> bool:
    if not glob.has_magic(part):
        return name == part
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == _ANY_DEPTH or fnmatch.fnmatch(name, part)


def _describe_failure(path: str, error: OSError) -> str:
    if os.path.islink(path) and error.errno == errno.ENOENT:
        return f"a link to {os.readlink(path)}, which is not there"
    return str(error.strerror)


# Find the odd file in a folder of another kind, such as a dataset's metadata (.json) among parquet files.

_SAMPLE_BYTES = 64 * 1024
_NEARLY_ALL = 3 / 4


def check_odd_files(
    found: Sequence[tuple[str, str, InputFile]], column: str, *, skip_bad: bool, note: Callable[[str], None]
) -> None:
    """Note files of another kind than nearly all that the same --input stands for, and refuse a `.json` among
    others that holds no JSON lines. `found` has for each file the flag and value it was found by, and a glob
    for all of these. `column` holds the documents."""
    groups: dict[tuple[str, str], list[InputFile]] = {}
    for given, every, file in found:
        if given and file.problem is None:
            groups.setdefault((given, every), []).append(file)
    for (given, every), files in groups.items():
        kinds = Counter(file.format for file in files)
        usual, count = kinds.most_common(1)[0]
        odd = [file for file in files if file.format != usual]
        if not odd:
            continue
        ending = Counter(os.path.splitext(file.name)[1] for file in files if file.format == usual)
        leave_out = f"{given.partition(' ')[0]} {shlex.quote(every + ending.most_common(1)[0][0])}"
        for file in odd:
            if not skip_bad and _holds_no_documents(file, column):
                raise InputError(
                    f"{given}: {file.name} holds no JSON lines with the key {column!r}, and {count:,} of "
                    f"{len(files):,} files there are {usual}.",
                    f"If it is no input, leave it out: {leave_out}",
                )
        if count >= _NEARLY_ALL * len(files):
            names = ", ".join(file.name for file in odd[:3]) + (", …" if len(odd) > 3 else "")
            others = " and ".join(sorted({file.format for file in odd}))
            note(
                f"{given}: {count:,} of {len(files):,} files are {usual}; also read ({others}): {names}. "
                f"To read {usual} only: {leave_out}"
            )


def _holds_no_documents(file: InputFile, column: str) -> bool:
    """Tell whether a `.json` file on this machine is no JSON lines, by its first line: such files are often a
    dataset's metadata. One that can't be judged may be."""
    if not file.path.lower().endswith(".json") or file.is_remote or file.is_pipe:
        return False
    try:
        with open(file.path, "rb") as content:
            head = content.read(_SAMPLE_BYTES)
    except OSError:
        return False  # reported when it is read
    first, line_end, _ = head.lstrip().partition(b"\n")
    if len(head) == _SAMPLE_BYTES and not line_end:
        return False
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return not isinstance(row, dict) or column not in row


# Find the objects that an address stands for: one object, a folder, or a glob.
#
# A store has no folders, only names with slashes. A folder is what has such a name before it, and the rules
# of a local folder hold: everything below it, except what is hidden.

OpenBucket = Callable[[str], Bucket]


@dataclass
class FoundObjects(Findings):
    """What was found in a bucket."""

    objects: dict[str, ObjectInfo] = field(default_factory=dict)  # by their names, relative to the root
    is_one: bool = False  # the address is that of an object
    is_folder: bool = False

    def path_of(self, name: str) -> str:
        return f"{self.root}/{name}"


def find_objects(text: str, open_bucket: OpenBucket) -> FoundObjects:
    """Find what an address stands for, in the order of the names."""
    folder, pattern = split_glob(text)
    if not any(letter in text for letter in "*?"):  # [ may be a part of a name
        address = BucketAddress.parse(text)
        found = None if text.endswith("/") else _find_one(address, open_bucket)
        if found is not None:
            return found
        if not glob.has_magic(text):
            folder, pattern = address, FOLDER_PATTERN
    listed = open_bucket(str(folder)).list()
    wanted = with_files(pattern)
    objects = {one.name: one for one in _without_folders(listed) if matches_glob(one.name.split("/"), wanted)}
    is_folder = pattern is FOLDER_PATTERN
    return FoundObjects(str(folder), sorted(objects), objects=objects, is_folder=is_folder)


def _find_one(address: BucketAddress, open_bucket: OpenBucket) -> FoundObjects | None:
    """Return the object at an address; None if there is none."""
    path = PurePosixPath(address.prefix)
    if not path.name:
        return None
    folder = BucketAddress(
        address.scheme, address.bucket, "" if str(path.parent) == "." else str(path.parent)
    )
    info = open_bucket(str(folder)).head(path.name)
    if info is None:
        return None
    return FoundObjects(str(folder), [path.name], objects={path.name: info}, is_one=True)


def _without_folders(listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Return objects without the empty ones by which some programs mark a folder."""
    objects = list(listed)
    folders = {str(parent) for one in objects for parent in PurePosixPath(one.name).parents}
    return [one for one in objects if one.size_bytes or one.name not in folders]
