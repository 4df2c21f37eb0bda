"""Keep finished files in a folder: a file grows in the work folder, and is renamed when it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from fineweb_shards.events import Observer
from fineweb_shards.output.manifest import FILE_NAME, MOST_BYTES
from fineweb_shards.output.shard_files import find_file, growing_path
from fineweb_shards.output.store import FoundFile, GrowingPart, Segment, Store
from fineweb_shards.system.durable import FolderLock, is_locked, publish, sync_folder, write_file
from fineweb_shards.system.own_files import (
    WORK_FOLDER,
    make_folder,
    open_own,
    read_file,
    refuse_link,
    refuse_other_kinds,
)


@dataclass(frozen=True, slots=True)
class FolderStore(Store):
    """A folder that all processes of a run can see."""

    folder: Path
    is_remote: ClassVar[bool] = False

    @property
    def location(self) -> str:
        return str(self.folder)

    def find(self, name: str) -> FoundFile | None:
        path = find_file(self.folder, name)
        return FoundFile(name, path.stat().st_size, path == self.folder / name) if path else None

    def open(self, file: FoundFile) -> BinaryIO:
        path = find_file(self.folder, file.name) or self.folder / file.name  # renamed in between
        return open_own(path, "rb", follow_links=path.parent.name != WORK_FOLDER)

    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        with self.open(file) as opened:
            opened.seek(begin)
            return opened.read(end - begin)

    def list_names(self, below: str = "") -> list[str]:
        folder = self.folder / below
        return os.listdir(folder) if folder.is_dir() else []

    def named_bytes(self, names: Iterable[str]) -> dict[str, int]:
        return {name: (self.folder / name).lstat().st_size for name in names if os.path.lexists(self.folder / name)}

    def is_locked(self) -> bool:
        return is_locked(self.folder)

    def manifest_version(self) -> object:
        try:
            state = (self.folder / FILE_NAME).stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def read_manifest(self) -> bytes | None:
        try:
            return read_file(self.folder / FILE_NAME, MOST_BYTES, follow_links=True)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def lock(self, observer: Observer) -> contextlib.AbstractContextManager[object]:
        return FolderLock(self.folder)

    def save_manifest(self, data: bytes) -> None:
        write_file(self.folder / FILE_NAME, data, self.folder / WORK_FOLDER)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._final(name)
            try:
                path.unlink(missing_ok=True)
            except OSError:
                refuse_other_kinds(path)  # a better message than "not permitted"
                raise

    def prepare(self, name: str, offset: int) -> GrowingPart:
        final = self.folder / name
        path = growing_path(final)
        if not offset:
            open_own(path, "xb").close()
            return GrowingPart(path)
        if not os.path.lexists(path):
            open_own(final, "r+b").close()  # refuse a foreign file before moving it
            os.replace(final, path)  # it was finished, but a part was lost afterwards
        with open_own(path, "r+b") as file:
            file.truncate(offset)
        return GrowingPart(path)

    def add_segment(self, segment: Segment, observer: Observer) -> None:
        with open_own(segment.path, "rb") as file:
            os.fsync(file.fileno())

    def name_file(self, segment: Segment) -> None:
        if not segment.whole:
            sync_folder(segment.path.parent)  # the manifest will rely on the file
        elif os.path.lexists(segment.path):  # else an interrupted call has renamed it
            publish(segment.path, self.folder / segment.name)

    def add_file(self, temporary: Path, name: str, observer: Observer) -> None:
        final = self._final(name)
        if not final.parent.is_dir():
            make_folder(final.parent)  # another process may be doing the same
            sync_folder(self.folder)
        publish(temporary, final)

    def _final(self, name: str) -> Path:
        """Return the path of a finished file, after checking that its subfolder is no link."""
        path = self.folder / name
        if path.parent != self.folder:
            refuse_link(path.parent)
        return path
