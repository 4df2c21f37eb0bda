"""Open the files that this program writes. Nothing else in the package opens a file to write to it.

An output folder may come out of somebody's archive, or be one that others can write to. So whatever has the name of a
file of ours is looked at before it is used:

- A link is never followed, neither in a file's place nor in that of a folder of ours (the work folder, and
  what is in it). Links above are the user's own: --out may lead to another disk by one, and may be one.
- Only a plain file is opened. A pipe or a device in its place is not waited for.
- A file with a second hard link is not written to: its other name may be anybody's.
- A new file is created by this process (O_EXCL). What a killed run has left under its name is unlinked first.

Finished shards and the manifest may be links for those who only read them (`follow_links`): the hub's cache is made of
links. What is read whole has a limit: nothing of ours is larger.
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

# Everything except finished shards and the manifest is in here. build-nanogpt's loader opens every file with `train` or
# `val` in its name, so none of our other names may contain them.
WORK_FOLDER = ".fineweb-shards"
SMALL_BYTES = 16 * 2**20  # far more than any file of ours has, except for the manifest and a tokenizer

# Windows has none of these but O_BINARY; there a link is looked for before.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
Mode = Literal["rb", "r+b", "a+b", "xb"]
_is_junction = getattr(os.path, "isjunction", lambda path: False)  # Windows, from Python 3.12 on
_KINDS = {
    stat.S_IFLNK: (errno.ELOOP, "a link"),
    stat.S_IFDIR: (errno.EISDIR, "a folder"),
    stat.S_IFIFO: (errno.EINVAL, "a pipe"),
}


class ForeignFileError(OSError):
    """What has the name of a file or folder of ours is none of ours; `strerror` says what it is."""

    @property
    def hint(self) -> str:
        """The next step."""
        if self.errno == errno.EMLINK:
            name, other = shlex.quote(str(self.filename)), shlex.quote(f"{self.filename}.copy")
            return f"It was left alone. Make it a file of its own: cp {name} {other} && mv {other} {name}"
        if self.errno == errno.EPERM:
            return "It was left alone. Run the command as that user, or choose another folder."
        return "It was left alone. Look where it came from, then move it away, or choose another folder."


def open_own(
    path: Path, mode: Mode, *, follow_links: bool = False, create: bool = False, buffering: int = -1
) -> BinaryIO:
    """Open a file of ours like `open`; ForeignFileError if something else has its name. `xb` makes a new file in the
    place of one that an earlier run has left; with `create`, `r+b` makes one if there is none."""

    def opener(name: str, flags: int) -> int:
        return open_descriptor(name, flags | (os.O_CREAT if create else 0), follow_links=follow_links)

    return open(path, mode, buffering, opener=opener)


def open_descriptor(path: Path | str, flags: int, *, follow_links: bool = False) -> int:
    """Open a file of ours like `os.open`; ForeignFileError if something else has its name."""
    path = Path(path)
    if not follow_links:
        refuse_linked_folders(path)
        if not _NO_FOLLOW:
            refuse_link(path)
        flags |= _NO_FOLLOW
    try:
        if flags & os.O_EXCL:
            refuse_other_kinds(path)
            path.unlink(missing_ok=True)
        descriptor = os.open(path, flags | _ALWAYS, 0o666)
    except OSError:
        refuse_other_kinds(path)  # which says more than the number of an error
        raise
    try:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        refuse_other_kinds(path, os.fstat(descriptor), writes=writes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, most_bytes: int = SMALL_BYTES, *, follow_links: bool = False) -> bytes:
    """Read all of a file of ours; ForeignFileError if it is none, or larger than any of its kind."""
    with open_own(path, "rb", follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            what = f"{size:,} bytes long; a file of this name that fineweb-shards wrote has at most"
            raise ForeignFileError(errno.EFBIG, f"{what} {most_bytes:,}", str(path))
        return file.read(most_bytes)


def is_plain_file(path: Path) -> bool:
    """Return whether a plain file is there, which a link to one is not."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def refuse_other_kinds(path: Path, opened: os.stat_result | None = None, *, writes: bool = False) -> None:
    """Raise ForeignFileError if something is there that is no plain file, or, if it is opened for `writes`, one that
    has other names as well."""
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
    """Raise ForeignFileError if the work folder that `path` is in, or a folder between the two, is a link."""
    parts = path.parts
    if WORK_FOLDER in parts[:-1]:
        for end in range(len(parts) - parts[-2::-1].index(WORK_FOLDER) - 1, len(parts)):
            refuse_link(Path(*parts[:end]))


def refuse_foreign_files(work: Path, folders: Collection[str]) -> None:
    """Raise ForeignFileError if the work folder holds anything but plain files and these folders."""
    with os.scandir(work) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name not in folders or not entry.is_dir(follow_symlinks=False):
                refuse_other_kinds(Path(entry.path))


def make_folder(path: Path) -> None:
    """Make a folder of ours, unless it is there; ForeignFileError if it, or one that it is in, is a link."""
    refuse_linked_folders(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        refuse_link(path)
        if not os.path.lexists(path):
            raise  # one that it should be in is no folder
        raise ForeignFileError(errno.ENOTDIR, "this is a file, not a folder", str(path)) from None
    refuse_link(path)


def claim_folder(path: Path) -> None:
    """Make a folder of ours, or take over the one that is there: ForeignFileError if it is a link, or belongs to
    another user, who could put anything into it at any moment."""
    make_folder(path)
    if os.name == "nt":
        return
    owner = path.lstat().st_uid
    # Where a file system gives all files to one user, or those of root to nobody, that is who we are there.
    if owner != os.geteuid() and owner != _owner_of_new_file(path.parent):
        raise ForeignFileError(errno.EPERM, f"this folder belongs to another user ({owner})", str(path))


def _owner_of_new_file(folder: Path) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def refuse_link(path: Path) -> None:
    """Raise ForeignFileError if a link is there."""
    if os.path.islink(path) or _is_junction(path):
        raise ForeignFileError(errno.ELOOP, "this is a link, not what fineweb-shards wrote", str(path))
