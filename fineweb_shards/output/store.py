"""Define where the finished files of an output live: a folder, or a prefix in an object store.

In both cases everything else (unfinished files, the lock, the log) is in a folder on this machine; for a folder store
it is the same folder.

A token file is made in segments. Workers write each to a file that the store has prepared, and seal it; the parent then
renames whole files, in order, and saves the manifest.
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


@dataclass(frozen=True, slots=True)
class GrowingPart:
    """A file on this machine for the bytes of an output file from `begin` on."""

    path: Path
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens written to a file but not yet in the manifest."""

    path: Path  # of the file that the workers wrote
    begin: int  # the position of that file's first byte in the finished file
    name: str  # of the finished file
    split: Split
    offset: int  # of its first byte in the finished file; 0 for a whole shard, which includes the header
    size_bytes: int
    tokens: int
    documents: int
    whole: bool  # the file ends with it
    header: bytes = b""  # of the whole file, known when it ends

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class Store(ABC):
    """The finished files of an output, by name. Can be sent to other processes."""

    is_remote: ClassVar[bool]  # finished files are not in a folder, and not all segments of one are written to one file
    folder: Path  # on this machine
    run_id: str = ""  # marks this run's manifests, if the store replaces them by compare-and-set

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the files are, for people."""

    @property
    def identity(self) -> str:
        """The location, without links; two stores with the same one have the same files."""
        return self.location if self.is_remote else os.path.realpath(self.folder)

    @property
    def name(self) -> str:
        """The last component of the location."""
        return Path(self.identity).name

    def has_inside(self, path: str) -> bool:
        """Return whether a path or address is directly in the store."""
        return self.identity == (path.rpartition("/")[0] if self.is_remote else os.path.realpath(Path(path).parent))

    # For readers

    @abstractmethod
    def find(self, name: str) -> FoundFile | None:
        """Find a file, growing or finished; None if it is missing."""

    def find_all(self, names: Iterable[str]) -> dict[str, FoundFile]:
        """Find many files at once; missing ones are left out."""
        return {name: found for name in names if (found := self.find(name)) is not None}

    def require(self, name: str) -> FoundFile:
        """Find a file; FileNotFoundError if it is missing."""
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
        """Open a file, growing or finished, for reading. Raises OSError or a ShardError."""

    @abstractmethod
    def list_names(self, below: str = "") -> list[str]:
        """Return the names of all finished files directly in the store, or in its folder `below`."""

    @abstractmethod
    def named_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the files with these final names; missing ones are left out."""

    @abstractmethod
    def is_locked(self) -> bool:
        """Return whether a run is active here."""

    @abstractmethod
    def manifest_version(self) -> object:
        """Return a value that changes when the manifest is replaced; None if there is none."""

    @abstractmethod
    def read_manifest(self) -> bytes | None:
        """Read the current manifest; None if there is none. Raises OSError or a ShardError."""

    def refresh(self) -> None:
        """Update the manifest and other small files in the folder, if they are copies."""

    # For one run

    @abstractmethod
    def lock(self, observer: Observer) -> contextlib.AbstractContextManager[object]:
        """Lock the store for one run; LockedError if another one is active."""

    def observe(self, observer: Observer) -> None:
        """Report waits and events to this observer from now on."""

    def check_lock(self) -> None:
        """Raise LockedError if another run has taken over the lock."""

    @abstractmethod
    def save_manifest(self, data: bytes) -> None:
        """Replace the manifest durably."""

    def hurry(self, longest_seconds: float) -> None:
        """From now on wait at most this long for a response, because the run is about to end."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove finished files, and the parts of growing ones. Missing files are no error."""

    @abstractmethod
    def prepare(self, name: str, offset: int) -> GrowingPart:
        """Prepare a file for its bytes from `offset` on. Earlier bytes are in the manifest; later ones are cut off.
        Raises OSError."""

    @abstractmethod
    def add_segment(self, segment: Segment, observer: Observer) -> None:
        """Store a segment that was written and read back; it is durable on return. Callable in any process."""

    @abstractmethod
    def name_file(self, segment: Segment) -> None:
        """Give a file that ends with this segment its final name, or make sure that a growing one is found again.
        Raises OSError."""

    @abstractmethod
    def add_file(self, temporary: Path, name: str, observer: Observer) -> None:
        """Store a small file durably and atomically. Callable in any process. Raises OSError."""

    def remove_unrecorded(self, recorded: Mapping[str, int]) -> None:
        """Remove remote parts of unfinished files, except for the recorded bytes of each name."""

    def remove_work_copies(self) -> None:
        """Remove remote copies of the work folder's files."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    store: Store
    layout: Layout
    vocabulary: Vocabulary
    shard_tokens: int
    split_rule: SplitRule
    drop_short: bool = False  # drop a last training shard that is not full
    gpus: int = 1  # for training; affects only warnings

    @property
    def folder(self) -> Path:
        """The folder on this machine: the output folder or, for a bucket, the scratch folder."""
        return self.store.folder

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)
