"""Define where the finished files of an output live: a folder, or a prefix in an object store.

Everything that is not a finished file is in a folder on this machine in both cases: what is being made, the lock, the
log. If the store is a folder, it is the same one.

A file of tokens comes in segments. Workers write each into a file that the store has prepared, and seal it; the parent
then names files that are whole, in order, and saves the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import Layout, ShardFormat
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Split
from fineweb_shards.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a store. `named`: it has its final name; otherwise it still grows."""

    name: str
    size_bytes: int
    named: bool
    etag: str = ""  # another one for other content, where the store has such a thing


@dataclass(frozen=True, slots=True)
class GrowingPart:
    """A file on this machine for the next bytes of a file, from its byte `begin` on."""

    path: Path
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that were written to a file and are not in the manifest yet."""

    path: Path  # of the file that the workers have written
    begin: int  # the byte of the finished file with which that one begins
    name: str  # of the finished file
    split: Split
    offset: int  # of its first byte in the finished file; 0 in a whole shard, whose header belongs to it
    size_bytes: int
    tokens: int
    documents: int
    whole: bool  # the file ends with it
    header: bytes = b""  # of the whole file, which is known when it ends

    @property
    def end(self) -> int:
        """The byte of the finished file after its last one."""
        return self.offset + self.size_bytes


class Store(ABC):
    """The finished files of an output, by their names. Can be sent to other processes."""

    grows_in_place: ClassVar[bool]  # all segments of a file are written into the same file
    is_remote: ClassVar[bool]  # finished files are not in a folder
    folder: Path  # on this machine
    # What tells this run's manifests from those of others, where a manifest is only replaced if it is still the one
    # that was read; else nothing.
    run_id: str = ""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the files are, for people."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last word of the location."""

    @abstractmethod
    def is_same(self, other: Store) -> bool:
        """Return whether another store has the same files."""

    @abstractmethod
    def has_inside(self, path: str) -> bool:
        """Return whether a path or address is that of something directly in the store."""

    # For readers

    @abstractmethod
    def find(self, name: str) -> FoundFile | None:
        """Look for a file, whether it grows or is finished; None if it is missing."""

    def find_all(self, names: Iterable[str]) -> dict[str, FoundFile]:
        """Look for many files at once; missing ones are left out."""
        return {name: found for name in names if (found := self.find(name)) is not None}

    def require(self, name: str) -> FoundFile:
        """Look for a file; FileNotFoundError if it is missing."""
        found = self.find(name)
        if found is None:
            what = "there is no such object" if self.is_remote else os.strerror(errno.ENOENT)
            raise FileNotFoundError(errno.ENOENT, what, f"{self.location}/{name}")
        return found

    @abstractmethod
    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        """Read a file from byte `begin` to `end`, or to its end. Raises OSError or a ShardError."""

    @abstractmethod
    def open(self, file: FoundFile) -> BinaryIO:
        """Open a file for reading, whether it grows or is finished. Raises OSError or a ShardError."""

    @abstractmethod
    def list_names(self, below: str = "") -> list[str]:
        """Return the names of all finished files directly in the store, or in a folder of it."""

    @abstractmethod
    def named_bytes(self, name: str) -> int | None:
        """Return the size of whatever has this final name; None if nothing has."""

    def all_named_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of many at once; missing ones are left out."""
        return {name: size for name in names if (size := self.named_bytes(name)) is not None}

    @abstractmethod
    def is_locked(self) -> bool:
        """Return whether a run is active here now."""

    @abstractmethod
    def manifest_version(self) -> object:
        """Tell which manifest is there now: another value after it was replaced; None if there is none."""

    @abstractmethod
    def read_manifest(self) -> bytes | None:
        """Read the manifest that is there now; None if there is none. Raises OSError or a ShardError."""

    def refresh(self) -> None:
        """Bring the manifest and the other small files in the folder up to date, if they are copies."""

    # For one run

    @abstractmethod
    def lock(self, observer: Observer) -> contextlib.AbstractContextManager[object]:
        """Lock the store for one run; LockedError if another one is active."""

    def observe(self, observer: Observer) -> None:
        """Tell this observer of waits and events from now on."""

    def check_lock(self) -> None:
        """Raise LockedError if another run has taken over the lock."""

    @abstractmethod
    def save_manifest(self, data: bytes) -> None:
        """Replace the manifest durably."""

    def hurry(self, longest_seconds: float) -> None:
        """Wait no longer than this for an answer from now on: the run is about to end."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove finished files, and what is there of those that grow. Missing ones are no error."""

    @abstractmethod
    def prepare(self, name: str, offset: int) -> GrowingPart:
        """Prepare a file for its bytes from `offset` on; those before are in the manifest already, and what was written
        after them is cut off. Raises OSError."""

    @abstractmethod
    def add_segment(self, segment: Segment, observer: Observer) -> None:
        """Take over a segment that was written and read back; durable when this returns. In any process."""

    @abstractmethod
    def name_file(self, segment: Segment) -> None:
        """Give a file that ends with this segment its name, or make sure that one that grows on is found again. Raises
        OSError."""

    @abstractmethod
    def add_file(self, temporary: Path, name: str, observer: Observer) -> None:
        """Take over a small file, durably and at once. In any process. Raises OSError."""

    @abstractmethod
    def leftovers(self, names: Iterable[str]) -> list[Path]:
        """Return the unfinished files in the work folder that are not of these names."""

    @abstractmethod
    def scratch_bytes(self, total_bytes: int, shard_bytes: int, shards_at_once: int) -> int:
        """Return the space on this machine for `total_bytes` of output, `shards_at_once` being made."""

    def remove_unrecorded(self, recorded: Mapping[str, int]) -> None:
        """Remove what is kept elsewhere of unfinished files, except for the recorded bytes of each name."""

    def remove_work_copies(self) -> None:
        """Remove what is kept elsewhere of the work folder's files."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What to write, and where."""

    store: Store
    layout: Layout
    vocabulary: Vocabulary
    shard_tokens: int
    split_rule: SplitRule
    drop_short: bool = False  # delete a last training shard that is not full
    gpus: int = 1  # that will train on it; only warnings depend on it

    @property
    def folder(self) -> Path:
        """The folder on this machine: the output folder, unless the store is elsewhere."""
        return self.store.folder

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)
