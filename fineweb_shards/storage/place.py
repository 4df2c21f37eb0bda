"""Define a place: where the bytes of input files are. A format reads from any of them and never asks which.

A place opens a file by ranges (`open`), or to be read front to back (`stream`). It exists in the parent and, by
pickling, in every worker. A new place is a subclass of `Place` and an entry in `PLACES`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import BinaryIO, ClassVar

from fineweb_shards.errors import BadFileError
from fineweb_shards.events import Observer
from fineweb_shards.storage.byte_source import ByteSource
from fineweb_shards.system.retry import Retrier

STANDARD_INPUT = "-"
LOCAL, HUB, HUB_ON_DISK, BUCKET, WEB, SCRATCH = "local", "hub", "hub-on-disk", "bucket", "web", "scratch"
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})  # of HTTP: they may pass


@dataclass(frozen=True, slots=True)
class HubRef:
    """A dataset on the hub at one commit, and how to read it."""

    dataset: str
    name: str
    hub_split: str
    commit: str
    work_folder: str  # for what the processes of a run share, and for downloads
    keep_downloads: bool


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file, with what is needed to notice that it has changed."""

    index: int
    path: str  # or STANDARD_INPUT, or the address of an object in a bucket
    name: str  # for messages and the manifest: the path relative to the --input it was found by
    format: str  # a key of formats.registry.FORMATS
    compression: str | None  # "gzip", "zstd" or None
    size_bytes: int
    mtime_ns: int
    content_hash: str  # of samples of a local file; for a remote one, the hub's hash, or a bucket's ETag
    problem: str | None = None  # why nothing of it can be read: a broken link, a folder without permission
    is_pipe: bool = False  # standard input or a named pipe: can be read once, front to back
    for_validation: bool = False  # all its documents: named by --val-input
    # Of a text, if no --separator is given: what was found in it. "": see the setting.
    separator: str = ""
    place: str = LOCAL  # a key of PLACES

    @property
    def is_remote(self) -> bool:
        """Whether it is read over the network."""
        return self.place in (HUB, BUCKET, WEB)

    @property
    def is_missing(self) -> bool:
        """Whether it comes from the hub, is read from the disk, and is not there yet."""
        return self.place == HUB_ON_DISK and not os.path.exists(self.path)


class Place(ABC):
    """Where files are. Threads may share it."""

    is_remote: ClassVar[bool] = False  # every range is a request, and may arrive damaged

    def __init__(
        self, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
    ) -> None:
        self.hub = hub
        self.max_outage_seconds = max_outage_seconds
        self.retrier = Retrier(max_outage_seconds, observer)

    def __reduce__(self) -> tuple[type[Place], tuple[HubRef | None, int]]:
        return type(self), (self.hub, self.max_outage_seconds)  # without open files and connections

    def reopened(self, observer: Observer | None) -> Place:
        """Return the same place with no file open; a new `observer` replaces the old one."""
        return type(self)(self.hub, self.max_outage_seconds, observer or self.retrier.observer)

    @abstractmethod
    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        """Open a file to read it by ranges. `address` is where another process has found its bytes."""

    @abstractmethod
    def stream(self, file: InputFile) -> BinaryIO:
        """Open a file to read it front to back, as it is stored; OSError if it can't be opened."""

    def expect(self, files: Sequence[InputFile]) -> None:
        """Prepare files that will be read next, such as by downloading them. Runs in the parent."""

    def has(self, file: InputFile) -> bool:
        """Return whether a file can be opened now, without waiting for anything but answers."""
        return True

    def address_of(self, file: InputFile) -> str | None:
        """Return where the bytes of a file are, so that workers need not ask; None if they know."""
        return None

    def release(self, files: Sequence[InputFile]) -> None:
        """Free what is kept of files that will never be read again. Runs in the parent."""


# Named, not imported: a run over local files never loads the hub's clients.
PLACES = {
    LOCAL: "local.LocalPlace",
    HUB: "hub.HubPlace",
    HUB_ON_DISK: "hub.HubOnDiskPlace",
    BUCKET: "bucket.BucketPlace",
    WEB: "web.WebPlace",
    SCRATCH: "local.ScratchPlace",
}


def open_place(
    name: str, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
) -> Place:
    """Return the place of that name, for this process."""
    found: type[Place] = resolve_name(f"{__package__}.{PLACES[name]}")
    return found(hub, max_outage_seconds, observer)


def read_error(file: InputFile, error: OSError) -> BadFileError:
    """Make the error for a file that can't be opened or read."""
    return BadFileError(f"{file.path}: {error.strerror or error}.")


def plain_etag(etag: str | None) -> str:
    """Return an ETag without quotes: some servers have them in listings, and some only in answers."""
    return etag.removeprefix("W/").strip('"') if etag else ""
