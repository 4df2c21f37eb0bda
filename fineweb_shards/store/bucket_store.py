"""Keep finished files in a bucket: what is being made is in a folder on this machine, the scratch folder.

A file is uploaded when it is sealed, in parts if it is large; it is visible when all of it is there. So
several files may be there before the manifest names the first of them, but each is whole, and what the
manifest does not name is made again. The manifest is written by compare-and-set: of two runs one is refused.
The small files of the work folder (log, report, heartbeat) are copied into the bucket now and then, so that
`status` works from anywhere, and a run can be finished on another machine.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from fineweb_shards.errors import ChangedError, InputError, LockedError, OutputError
from fineweb_shards.events import Event, Observer
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_requests import PROBE_PREFIX, ObjectInfo, Version
from fineweb_shards.storage.byte_source import open_in_order
from fineweb_shards.storage.place import plain_etag
from fineweb_shards.store.bucket_lock import BucketLock, is_bucket_locked
from fineweb_shards.store.bucket_parts import (
    PARTS_FOLDER,
    FilePart,
    FilePiece,
    FileSource,
    JoinedFile,
    cover,
    cut_pieces,
    parse_part,
    part_name,
)
from fineweb_shards.store.manifest import FILE_NAME, MOST_BYTES
from fineweb_shards.store.mirrored_files import MirroredFiles
from fineweb_shards.store.store import FoundFile, GrowingPart, Segment, Store
from fineweb_shards.system.durable import WORK_FOLDER, FolderLock, write_file
from fineweb_shards.system.own_files import make_folder, open_own
from fineweb_shards.units import show_number_of

_PROBE_SECONDS = 60.0  # a probe that is older is left from a run that was killed; a newer one may be in use


@dataclass(frozen=True, slots=True)
class _FoundObjects(FoundFile):
    """A file in a bucket, and the pieces of objects that it consists of."""

    pieces: tuple[FilePiece, ...] = ()


class BucketStore(Store):
    """A folder of a bucket, and the scratch folder that belongs to it on this machine."""

    grows_in_place: ClassVar[bool] = False
    is_remote: ClassVar[bool] = True

    def __init__(self, bucket: Bucket, scratch: Path) -> None:
        self._bucket = bucket
        self._scratch = scratch
        self._mirror = MirroredFiles(bucket, scratch / WORK_FOLDER)
        self._version: Version | None = None  # of the manifest that this run has read or written
        self._lock: BucketLock | None = None  # of this run
        self._observer = Observer()  # of this run

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketStore, (self._bucket, self._scratch)

    @property
    def folder(self) -> Path:
        return self._scratch

    @property
    def location(self) -> str:
        return str(self._bucket.address)

    @property
    def name(self) -> str:
        return self.location.rpartition("/")[2]

    def is_same(self, other: Store) -> bool:
        return isinstance(other, BucketStore) and other.location == self.location

    def has_inside(self, path: str) -> bool:
        return path.rpartition("/")[0] == self.location

    # For readers

    def fetch(self) -> None:
        """Copy the manifest and the small files of the work folder to this machine."""
        work = self._scratch / WORK_FOLDER
        make_folder(work)
        found = self._bucket.read(FILE_NAME, MOST_BYTES)
        if found is None:
            self._version = None
            (self._scratch / FILE_NAME).unlink(missing_ok=True)
        else:
            data, self._version = found
            write_file(self._scratch / FILE_NAME, data, work)
        self._mirror.pull()

    def find(self, name: str) -> FoundFile | None:
        parts = self._list_parts(name)  # first: they are deleted when the whole file has its name
        return _judge(name, self._bucket.head(name), parts)

    def find_all(self, names: Iterable[str]) -> dict[str, FoundFile]:
        objects = list(self._bucket.list())  # one listing instead of many requests; parts come first in it
        named = {info.name: info for info in objects}
        parts = _by_file(part for info in objects if (part := parse_part(info)) is not None)
        found = {name: _judge(name, named.get(name), parts[name]) for name in names}
        return {name: file for name, file in found.items() if file is not None}

    def open(self, file: FoundFile) -> BinaryIO:
        pieces = _pieces_of(file)
        if pieces and not _has_parts(file):
            return self._bucket.open(file.name, pieces[0].info)
        return open_in_order(
            lambda begin, end: memoryview(self.read_range(file, begin, end)), file.size_bytes
        )

    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        """Read a range. If a build joins the parts of the file meanwhile, it is read from the whole one: its
        tokens are the same at the same bytes."""
        try:
            return b"".join(self._read_piece(piece, begin, end) for piece in _pieces_of(file))
        except (ChangedError, InputError, OutputError):
            joined = self.find(file.name) if _has_parts(file) else None
            if joined is None or joined == file or not joined.named or joined.size_bytes < file.size_bytes:
                raise
        return self.read_range(joined, begin, end)

    def _read_piece(self, piece: FilePiece, begin: int, end: int) -> bytes:
        """Read what a piece has of a range of the file."""
        shift = piece.skip - piece.begin
        first, last = max(begin, piece.begin) + shift, min(end, piece.end) + shift
        return self._bucket.read_range(piece.info.name, first, last, piece.info.etag)

    def list_names(self, below: str = "") -> list[str]:
        return [info.name.rpartition("/")[2] for info in self._bucket.list_folder(below)]

    def named_bytes(self, name: str) -> int | None:
        found = self._bucket.head(name)
        return None if found is None else found.size_bytes

    def all_named_bytes(self, names: Iterable[str]) -> dict[str, int]:
        sizes = {info.name: info.size_bytes for info in self._bucket.list()}  # as in find_all
        return {name: sizes[name] for name in names if name in sizes}

    def is_locked(self) -> bool:
        return is_bucket_locked(self._bucket)

    def manifest_version(self) -> object:
        found = self._bucket.head(FILE_NAME)
        return None if found is None else (found.etag, found.size_bytes)

    def read_manifest(self) -> bytes | None:
        found = self._bucket.read(FILE_NAME, MOST_BYTES)
        return None if found is None else found[0]

    def refresh(self) -> None:
        found = self._bucket.head(FILE_NAME)
        if found is None or self._version is None or found.etag != plain_etag(self._version.etag):
            self.fetch()
        else:
            self._mirror.pull()

    # For one run

    @contextlib.contextmanager
    def lock(self, observer: Observer) -> Iterator[object]:
        self._observer = observer
        with self._locked_scratch():
            if not self._bucket.has_conditional_writes:
                text = "this store does not check conditions, so two runs may not notice each other"
                observer.tell(Event("note", f"note: {self.location}: {text}"))
            bucket = self._bucket.reopened(observer)
            with BucketLock(bucket, self._scratch, self._mirror.push, observer) as self._lock:
                self.fetch()
                yield self

    def observe(self, observer: Observer) -> None:
        self._observer = observer
        self._bucket = self._bucket.reopened(observer)
        if self._lock is not None:
            self._lock.observe(observer)

    def check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    @contextlib.contextmanager
    def _locked_scratch(self) -> Iterator[None]:
        """Lock the scratch folder; what can't be done with it is not the fault of --out."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(FolderLock(self._scratch, is_own=True))
            except LockedError as error:
                message = error.message.replace(str(self._scratch), self.location, 1)
                raise LockedError(message, error.hint) from None
            except OutputError as error:
                hint = "What is made for a bucket is made in this folder. Name another one with --scratch."
                raise type(error)(error.message, hint) from None
            yield

    @property
    def run_id(self) -> str:
        return self._lock.run_id if self._lock is not None else ""

    def save_manifest(self, data: bytes) -> None:
        self._version = self._bucket.write(FILE_NAME, data, replaces=self._version)
        write_file(self._scratch / FILE_NAME, data, self._scratch / WORK_FOLDER)

    def hurry(self, longest_seconds: float) -> None:
        self._bucket = self._bucket.hurried(longest_seconds, longest_seconds)

    def remove(self, names: Iterable[str]) -> None:
        names = set(names)
        if FILE_NAME in names:
            self._version = None
        parts = [part.info.name for part in self._list_parts() if part.file in names]
        self._bucket.delete([*parts, *names])
        for name in names:
            (self._scratch / name).unlink(missing_ok=True)

    def prepare(self, name: str, offset: int) -> GrowingPart:
        path = self._scratch / WORK_FOLDER / f"{name}.{offset}.tmp"
        open_own(path, "xb").close()
        return GrowingPart(path, offset)

    def add_segment(self, segment: Segment, observer: Observer) -> None:
        bucket = self._bucket.reopened(observer)
        if not segment.whole:
            bucket.upload(segment.path, part_name(segment.name, segment.begin))
        elif not segment.begin:
            bucket.upload(segment.path, segment.name)
        else:
            self._join(segment, bucket)

    def _join(self, segment: Segment, bucket: Bucket) -> None:
        """Write a whole file: its header, the parts before its last segment, and that segment."""
        named, parts = bucket.head(segment.name), self._list_parts(segment.name)
        pieces = cut_pieces(cover(named, parts), segment.begin)
        if not pieces or pieces[-1].end != segment.begin:
            raise OutputError(
                f"{bucket.address.child(segment.name)}: its parts before byte {segment.begin:,} are missing.",
                "Somebody else has removed them. The same command makes them again.",
            )
        header = segment.header  # the first part has nothing in its place
        sources: list[FileSource] = [
            (len(header), lambda: io.BytesIO(header)),
            *(_source_of(piece, bucket, max(0, len(header) - piece.begin)) for piece in pieces),
            (segment.end - segment.begin, lambda: open_own(segment.path, "rb")),
        ]
        with io.BufferedReader(JoinedFile(sources)) as whole:
            bucket.upload_file(whole, segment.end, segment.name)

    def name_file(self, segment: Segment) -> None:
        if segment.whole and segment.begin:
            self._bucket.delete([part.info.name for part in self._list_parts(segment.name)])
        segment.path.unlink(missing_ok=True)

    def add_file(self, temporary: Path, name: str, observer: Observer) -> None:
        self._bucket.reopened(observer).upload(temporary, name)
        temporary.unlink()

    def leftovers(self, names: Iterable[str]) -> list[Path]:
        return list((self._scratch / WORK_FOLDER).glob("*.tmp"))

    def remove_unrecorded(self, recorded: Mapping[str, int]) -> None:
        unrecorded = []
        for file, parts in _by_file(self._list_parts()).items():
            end = recorded.get(file, 0)
            named = self._bucket.head(file)
            # Once the file is whole, a run that was killed may not have come to deleting its parts.
            begin = 0 if named is not None and named.size_bytes == end else end
            unrecorded += [part.info.name for part in parts if part.begin >= begin]
        self._bucket.delete(unrecorded)
        probes = [one for one in self._bucket.list_folder(WORK_FOLDER) if one.name.startswith(PROBE_PREFIX)]
        oldest = time.time() - _PROBE_SECONDS
        self._bucket.delete([one.name for one in probes if one.modified_seconds <= oldest])

    def remove_work_copies(self) -> None:
        self._mirror.remove()

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> None:
        is_new = self._version is None and not (self._lock and self._lock.follows_dead_run)
        if is_new:  # nobody was here before, and the client for it takes a moment to load
            return
        try:
            aborted = self._bucket.abort_uploads(
                lambda name: name.startswith(f"{PARTS_FOLDER}/") or is_ours(name)
            )
        except OutputError as error:  # not every store can list them, and not everybody may
            self._observer.tell(Event("note", f"note: {error.message} {error.hint}", loud=False))
            return
        if aborted:
            text = f"{show_number_of(aborted, 'unfinished upload')} of an earlier run given up"
            self._observer.tell(Event("note", f"note: {text}", loud=False))

    def scratch_bytes(self, total_bytes: int, shard_bytes: int, shards_at_once: int) -> int:
        return min(total_bytes, shards_at_once * shard_bytes)

    def _list_parts(self, file: str = "") -> list[FilePart]:
        below = f"{PARTS_FOLDER}/{file}" if file else PARTS_FOLDER
        return [part for info in self._bucket.list(below) if (part := parse_part(info)) is not None]


def _source_of(piece: FilePiece, bucket: Bucket, skip: int) -> FileSource:
    """Return a piece without its first `skip` bytes, for JoinedFile."""

    def opened() -> BinaryIO:
        file = bucket.open(piece.info.name, piece.info)
        file.seek(piece.skip + skip)
        return file

    return piece.end - piece.begin - skip, opened


def _by_file(parts: Iterable[FilePart]) -> dict[str, list[FilePart]]:
    found: dict[str, list[FilePart]] = defaultdict(list)
    for part in parts:
        found[part.file].append(part)
    return found


def _judge(name: str, named: ObjectInfo | None, parts: list[FilePart]) -> FoundFile | None:
    """Say how long a file is, and whether it has its name: parts that reach further mean that it grows. Parts
    that don't were left by a build that was ended before it deleted them; they have no header."""
    pieces = tuple(cover(named, parts))
    end = pieces[-1].end if pieces else 0
    if named is not None and named.size_bytes >= end:
        whole = (FilePiece(0, named.size_bytes, named),)
        return _FoundObjects(name, named.size_bytes, True, "" if parts else named.etag, whole)
    return _FoundObjects(name, end, False, "", pieces) if pieces else None


def _has_parts(file: FoundFile) -> bool:
    """Tell whether some of a file's bytes are in objects that are deleted when it is whole."""
    return any(piece.info.name != file.name for piece in _pieces_of(file))


def _pieces_of(file: FoundFile) -> tuple[FilePiece, ...]:
    assert isinstance(file, _FoundObjects), "it was found in another store"
    return file.pieces
