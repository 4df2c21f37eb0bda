"""Open the files that this program writes. Nothing else in the package opens a file for writing.

An output folder may come from an untrusted archive, or be writable for others. So anything with the name of one of our
files is checked before use:

- Links are never followed in place of a file or folder of ours (the work folder and its contents). Links above them are
  the user's: --out may be a link, or lead to another disk.
- Only plain files are opened. A pipe or a device in place of one does not block.
- A file with a second hard link is not written to: its other name may belong to anyone.
- This process creates each new file (O_EXCL), after unlinking the leftover of a killed run.

Readers may follow links to finished shards and the manifest (`follow_links`), because the hub's cache consists of
links. Files that are read whole have a size limit.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Literal

# For everything except finished shards and the manifest. build-nanogpt's loader opens every file with `train` or `val`
# in its name, so no other name of ours may contain them.
WORK_FOLDER = ".fineweb-shards"
SMALL_BYTES = 16 * 2**20  # far more than any of our files has, except for the manifest and a tokenizer

Mode = Literal["rb", "r+b", "a+b", "xb"]
_KINDS = {
    stat.S_IFLNK: (errno.ELOOP, "a link"),
    stat.S_IFDIR: (errno.EISDIR, "a folder"),
    stat.S_IFIFO: (errno.EINVAL, "a pipe"),
}


class ForeignFileError(OSError):
    """Something else has the name of a file or folder of ours; `strerror` says what it is."""

    @property
    def hint(self) -> str:
        if self.errno == errno.EMLINK:
            name, other = shlex.quote(str(self.filename)), shlex.quote(f"{self.filename}.copy")
            return f"It was left alone. Make it a separate file: cp {name} {other} && mv {other} {name}"
        if self.errno == errno.EPERM:
            return "It was left alone. Run the command as that user, or choose another folder."
        return "It was left alone. Find out where it came from, then move it away, or choose another folder."


def open_own(
    path: Path, mode: Mode, *, follow_links: bool = False, create: bool = False, buffering: int = -1
) -> BinaryIO:
    """Open a file of ours like `open`; ForeignFileError if something else has its name. `xb` replaces the leftover of
    an earlier run; with `create`, `r+b` creates a missing file."""

    def opener(name: str, flags: int) -> int:
        return open_descriptor(name, flags | (os.O_CREAT if create else 0), follow_links=follow_links)

    return open(path, mode, buffering, opener=opener)


def open_descriptor(path: Path | str, flags: int, *, follow_links: bool = False) -> int:
    """Open a file of ours like `os.open`; ForeignFileError if something else has its name."""
    path = Path(path)
    if not follow_links:
        refuse_linked_folders(path)
        flags |= os.O_NOFOLLOW
    try:
        if flags & os.O_EXCL:
            refuse_other_kinds(path)
            path.unlink(missing_ok=True)
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError:
        refuse_other_kinds(path)  # a better message than the errno's
        raise
    try:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        refuse_other_kinds(path, os.fstat(descriptor), writes=writes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, most_bytes: int = SMALL_BYTES, *, follow_links: bool = False) -> bytes:
    """Read a whole file of ours; ForeignFileError if it is not ours, or larger than any of its kind."""
    with open_own(path, "rb", follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            what = f"{size:,} bytes long, but fineweb-shards writes at most {most_bytes:,} to such a file"
            raise ForeignFileError(errno.EFBIG, what, str(path))
        return file.read(most_bytes)


def is_plain_file(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def refuse_other_kinds(path: Path, opened: os.stat_result | None = None, *, writes: bool = False) -> None:
    """Raise ForeignFileError for anything but a plain file and, if opened for `writes`, one with other names."""
    try:
        state = opened or path.lstat()
    except OSError:
        return
    if not stat.S_ISREG(state.st_mode):
        number, what = _KINDS.get(stat.S_IFMT(state.st_mode), (errno.EINVAL, "a device or a socket"))
        raise ForeignFileError(number, f"this is {what}, not a file that fineweb-shards wrote", str(path))
    if writes and state.st_nlink > 1:
        what = f"this file has {state.st_nlink} names (hard links); writing would change it under all"
        raise ForeignFileError(errno.EMLINK, what, str(path))


def refuse_linked_folders(path: Path) -> None:
    """Raise ForeignFileError if the work folder of `path`, or a folder between the two, is a link."""
    parts = path.parts
    if WORK_FOLDER in parts[:-1]:
        for end in range(len(parts) - parts[-2::-1].index(WORK_FOLDER) - 1, len(parts)):
            refuse_link(Path(*parts[:end]))


def refuse_foreign_files(work: Path, folders: Collection[str]) -> None:
    """Raise ForeignFileError if the work folder contains anything but plain files and these folders."""
    with os.scandir(work) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name not in folders or not entry.is_dir(follow_symlinks=False):
                refuse_other_kinds(Path(entry.path))


def make_folder(path: Path) -> None:
    """Create a folder of ours unless it exists; ForeignFileError if it, or a work folder above it, is a link."""
    refuse_linked_folders(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        refuse_link(path)
        if not os.path.lexists(path):
            raise  # a parent is not a folder
        raise ForeignFileError(errno.ENOTDIR, "this is a file, not a folder", str(path)) from None
    refuse_link(path)


def claim_folder(path: Path) -> None:
    """Create a folder of ours or take over an existing one; ForeignFileError if it is a link, or belongs to another
    user, who could change its contents at any time."""
    make_folder(path)
    owner = path.lstat().st_uid
    # Some file systems give all files to one user, or root's to nobody: then that user is us.
    if owner != os.geteuid() and owner != _owner_of_new_file(path.parent):
        raise ForeignFileError(errno.EPERM, f"this folder belongs to another user ({owner})", str(path))


def _owner_of_new_file(folder: Path) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ForeignFileError(errno.ELOOP, "this is a link, not what fineweb-shards wrote", str(path))
