"""Write files that survive a crash (temp, fsync, rename, fsync the folder), and lock a folder for one run.

An fsync error ends the run and is never retried: the kernel may have dropped the pages, and a second fsync would report
success for lost data (as PostgreSQL found out in 2018).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fineweb_shards.errors import DiskFullError, LockedError, OutputError
from fineweb_shards.system.own_files import WORK_FOLDER, ForeignFileError, claim_folder, open_own, refuse_other_kinds

LOCK_NAME = "lock"
_RETRY_SECONDS = 0.02


def is_lock_name(name: str) -> bool:
    """Return whether a file of the work folder belongs to the lock, which doesn't show that a run did any work."""
    return name == LOCK_NAME or name.startswith(f"{LOCK_NAME}.")


def output_error(path: Path, error: OSError) -> OutputError:
    if isinstance(error, ForeignFileError):
        return OutputError(f"{error.filename}: {error.strerror}.", error.hint)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: no space left on the disk.")
    return OutputError(f"{path}: {error.strerror or error}.")


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn an OSError from writing a file, or files of a folder, into one of our errors."""
    try:
        yield
    except OSError as error:
        raise output_error(path, error) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, final: Path) -> None:
    """Rename a finished, synced file to its final name, durably. Refuse anything but a plain file."""
    refuse_other_kinds(temporary)
    os.replace(temporary, final)
    try:
        refuse_other_kinds(final)  # in case another program swapped it just now
    except ForeignFileError:
        final.unlink()
        raise
    sync_folder(final.parent)


def write_file(path: Path, data: bytes, temporary_folder: Path) -> None:
    """Replace the content of `path` with `data`, durably and atomically."""
    temporary = temporary_folder / f"{path.name}.tmp"
    with output_errors(path):
        with open_own(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)


def write_quickly(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically but without fsync, for files that only report progress."""
    # A unique name, because another process or thread may be writing the same file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    file = open_own(temporary, "xb")
    try:
        with file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class FolderLock:
    """Locks an output folder for one run. The kernel releases the lock when the process ends. `is_own`: this program
    chose the folder's name, so the folder must be ours, like those in it."""

    def __init__(self, folder: Path, *, is_own: bool = False) -> None:
        self._folder, self._is_own = folder, is_own
        self._path = folder / WORK_FOLDER / LOCK_NAME
        self._file: BinaryIO | None = None

    def __enter__(self) -> FolderLock:
        while True:
            file = self._open()
            if not _try_lock_repeatedly(file):
                file.seek(0)
                holder = file.read(64).decode("ascii", "replace").strip() or "unknown"
                file.close()
                raise LockedError(f"{self._folder}: another run is writing here (process {holder}).")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self._path.lstat()):
                    break
            file.close()  # its holder has removed it meanwhile
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except OSError as error:
            file.close()
            raise output_error(self._path, error) from error
        self._file = file
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._file is not None
        self._file.close()

    def remove(self) -> None:
        """Remove the lock at the end of its run, with the folders that were made for it, unless they hold something."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()
            self._folder.rmdir()

    def _open(self) -> BinaryIO:
        try:
            if self._is_own:
                claim_folder(self._folder)
            claim_folder(self._path.parent)
            return open_own(self._path, "a+b", buffering=0)
        except (NotADirectoryError, FileExistsError) as error:
            message = f"{self._folder}: this is a file, not a folder."
            raise OutputError(message, "Choose another --out.") from error
        except OSError as error:
            raise output_error(self._path, error) from error


def is_locked(folder: Path) -> bool:
    """Return whether a run holds the folder now. Any number of processes may ask at once."""
    path = folder / WORK_FOLDER / LOCK_NAME
    try:
        # Reading is enough: the folder may belong to another user.
        with open_own(path, "r+b" if os.access(path, os.W_OK) else "rb") as file:
            return not try_lock(file, shared=True)
    except OSError:
        return False


def lock_file(file: BinaryIO) -> None:
    """Wait for an exclusive lock on a file; closing the file releases it. For locks that are only held briefly."""
    fcntl.flock(file, fcntl.LOCK_EX)


def _try_lock_repeatedly(file: BinaryIO) -> bool:
    """Retry the lock for a moment, because `is_locked` in other processes briefly holds a shared lock. Give up only if
    it is held exclusively, which means by a run."""
    refusals = 0
    for _ in range(500):
        if try_lock(file):
            return True
        refusals += not try_lock(file, shared=True)  # refused only if another process holds it exclusively
        unlock(file)
        if refusals == 5:
            return False
        time.sleep(_RETRY_SECONDS)
    return False


def try_lock(file: BinaryIO, *, shared: bool = False) -> bool:
    """Lock a file without waiting; return whether that succeeded. Closing all copies of its descriptor unlocks it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(file: BinaryIO) -> None:
    """Release a lock, even if a process forked meanwhile has the file open."""
    fcntl.flock(file, fcntl.LOCK_UN)
