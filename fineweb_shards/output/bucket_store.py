"""Keep finished files in a bucket. Unfinished ones are in a folder on this machine, the scratch folder.

docs/architecture.md compares it with a folder. Several whole files may exist before the manifest names the first of
them; files missing from the manifest are made again.

Objects can't be appended to. So each segment of a growing file is a separate object, a part, until the file is whole;
then all parts are copied into one object. An object under the file's own name may hold its beginning: the file was
whole before, and continues to grow.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from fineweb_shards.errors import ChangedError, InputError, LockedError, OutputError
from fineweb_shards.events import Event, Observer
from fineweb_shards.output.bucket_work_folder import BucketLock, MirroredFiles, is_bucket_locked
from fineweb_shards.output.manifest import FILE_NAME, MOST_BYTES
from fineweb_shards.output.store import FoundFile, GrowingPart, Segment, Store
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_requests import PROBE_PREFIX, ObjectInfo, Version
from fineweb_shards.storage.place import open_in_order, plain_etag
from fineweb_shards.system.durable import FolderLock, output_errors, write_file
from fineweb_shards.system.own_files import WORK_FOLDER, make_folder, open_own, refuse_other_kinds

_PARTS_FOLDER = f"{WORK_FOLDER}/parts"
_DIGITS = 16  # of the offset in a part's name, so that names sort in file order
_PROBE_SECONDS = 60.0  # an older probe is left from a killed run; a newer one may be in use
_Parts = Mapping[int, ObjectInfo]  # of a file, by their offset in it


@dataclass(frozen=True, slots=True)
class _Piece:
    """The bytes of a file from `begin` to `end`, stored in an object whose first byte is the file's byte `first`."""

    begin: int
    end: int
    info: ObjectInfo
    first: int


@dataclass(frozen=True, slots=True)
class _FoundObjects(FoundFile):
    """A file in a bucket, and the pieces of objects that make it up."""

    pieces: tuple[_Piece, ...] = ()

    @property
    def has_parts(self) -> bool:
        """Whether some of its bytes are in objects that are deleted once it is whole."""
        return any(piece.info.name != self.name for piece in self.pieces)


class BucketStore(Store):
    """A folder of a bucket, and its scratch folder on this machine."""

    is_remote: ClassVar[bool] = True

    def __init__(self, bucket: Bucket, scratch: Path) -> None:
        self._bucket = bucket
        self.folder = scratch
        self._mirror = MirroredFiles(bucket, scratch / WORK_FOLDER)
        self._version: Version | None = None  # of the manifest that this run has read or written
        self._lock: BucketLock | None = None  # of this run

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketStore, (self._bucket, self.folder)

    @property
    def location(self) -> str:
        return str(self._bucket.address)

    # For readers

    def _fetch_manifest(self) -> None:
        work = self.folder / WORK_FOLDER
        make_folder(work)
        found = self._bucket.read(FILE_NAME, MOST_BYTES)
        if found is None:
            self._version = None
            with output_errors(self.folder / FILE_NAME):
                refuse_other_kinds(self.folder / FILE_NAME)
                (self.folder / FILE_NAME).unlink(missing_ok=True)
        else:
            data, self._version = found
            write_file(self.folder / FILE_NAME, data, work)

    def find(self, name: str) -> FoundFile | None:
        parts = self._list_parts(name)  # first: they are deleted when the whole file has its name
        return _judge(name, self._bucket.head(name), parts)

    def find_all(self, names: Iterable[str]) -> dict[str, FoundFile]:
        objects = list(self._bucket.list())  # one listing instead of many requests; it has parts first
        named = {info.name: info for info in objects}
        parts = _group_parts(objects)
        found = {name: _judge(name, named.get(name), parts[name]) for name in names}
        return {name: file for name, file in found.items() if file is not None}

    def open(self, file: FoundFile) -> BinaryIO:
        assert isinstance(file, _FoundObjects), "it was found in another store"
        if file.pieces and not file.has_parts:
            return self._bucket.open(file.name, file.pieces[0].info)
        return open_in_order(lambda begin, end: memoryview(self.read_range(file, begin, end)), file.size_bytes)

    def read_range(self, file: FoundFile, begin: int, end: int) -> bytes:
        """Read a range. If a build joins the file's parts meanwhile, read the whole file, which has the same tokens at
        the same positions."""
        assert isinstance(file, _FoundObjects), "it was found in another store"
        try:
            return _read_pieces(self._bucket, file.pieces, begin, end)
        except (ChangedError, InputError, OutputError):
            joined = self.find(file.name) if file.has_parts else None
            if joined is None or joined == file or not joined.named or joined.size_bytes < file.size_bytes:
                raise
        return self.read_range(joined, begin, end)

    def list_names(self, below: str = "") -> list[str]:
        return [info.name.rpartition("/")[2] for info in self._bucket.list_folder(below)]

    def named_bytes(self, names: Iterable[str]) -> dict[str, int]:
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
        """Copy the manifest, if it has changed, and the small files of the work folder to this machine."""
        found = self._bucket.head(FILE_NAME) if self._version is not None else None
        if found is None or self._version is None or found.etag != plain_etag(self._version.etag):
            self._fetch_manifest()
        self._mirror.pull()

    # For one run

    @contextlib.contextmanager
    def lock(self, observer: Observer) -> Iterator[object]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(FolderLock(self.folder, is_own=True))
            except LockedError as error:
                message = error.message.replace(str(self.folder), self.location, 1)
                raise LockedError(message, error.hint) from None
            except OutputError as error:  # the scratch folder is at fault, not --out
                hint = "This folder is for the unfinished files of a bucket. Name another one with --scratch."
                raise type(error)(error.message, hint) from None
            if not self._bucket.has_conditional_writes:
                text = "this store does not check conditions, so two runs may not notice each other"
                observer.tell(Event("note", f"note: {self.location}: {text}"))
            lock = BucketLock(self._bucket.reopened(observer), self.folder, self._mirror.push, observer)
            self._lock, self.run_id = stack.enter_context(lock), lock.run_id
            self._fetch_manifest()
            self._mirror.pull(only_missing=lock.has_newest_files)
            lock.has_newest_files = True
            yield self

    def observe(self, observer: Observer) -> None:
        self._bucket = self._bucket.reopened(observer)
        if self._lock is not None:
            self._lock.observe(observer)

    def check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def save_manifest(self, data: bytes) -> None:
        self._version = self._bucket.write(FILE_NAME, data, replaces=self._version)
        write_file(self.folder / FILE_NAME, data, self.folder / WORK_FOLDER)

    def hurry(self, longest_seconds: float) -> None:
        self._bucket = self._bucket.hurried(longest_seconds, longest_seconds)

    def remove(self, names: Iterable[str]) -> None:
        names = set(names)
        if FILE_NAME in names:
            self._version = None
        parts = _group_parts(self._bucket.list(_PARTS_FOLDER))
        self._bucket.delete([*(info.name for name in names for info in parts[name].values()), *names])
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def prepare(self, name: str, offset: int) -> GrowingPart:
        path = self.folder / WORK_FOLDER / f"{name}.{offset}.tmp"
        open_own(path, "xb").close()
        return GrowingPart(path, offset)

    def add_segment(self, segment: Segment, observer: Observer) -> None:
        bucket = self._bucket.reopened(observer)
        if not segment.whole:
            bucket.upload(segment.path, _part_name(segment.name, segment.begin))
        elif not segment.begin:
            bucket.upload(segment.path, segment.name)
        else:
            self._join(segment, bucket)

    def _join(self, segment: Segment, bucket: Bucket) -> None:
        """Upload a whole file: its header, its parts, and its last segment."""
        named, parts = bucket.head(segment.name), self._list_parts(segment.name)
        pieces = _cover(named, parts)
        if not pieces or pieces[-1].end < segment.begin:
            raise OutputError(
                f"{bucket.address.child(segment.name)}: its parts before byte {segment.begin:,} are missing.",
                "Another program has removed them. Rerun the same command to make them again.",
            )

        def fetch(begin: int, end: int) -> memoryview:
            data = bytearray(_read_pieces(bucket, pieces, begin, min(end, segment.begin)))
            header = segment.header[begin:end]  # the first part left space for it
            data[: len(header)] = header
            with open_own(segment.path, "rb") as last:
                last.seek(max(0, begin - segment.begin))
                data += last.read(end - begin - len(data))
            if len(data) != end - begin:
                raise OSError(f"{segment.path} has become shorter while it was read, at byte {begin:,}")
            return memoryview(data)

        with open_in_order(fetch, segment.end) as whole:
            bucket.upload_file(whole, segment.end, segment.name)

    def name_file(self, segment: Segment) -> None:
        if segment.whole and segment.begin:
            self._bucket.delete([info.name for info in self._list_parts(segment.name).values()])
        segment.path.unlink(missing_ok=True)

    def add_file(self, temporary: Path, name: str, observer: Observer) -> None:
        self._bucket.reopened(observer).upload(temporary, name)
        temporary.unlink()

    def remove_unrecorded(self, recorded: Mapping[str, int]) -> None:
        unrecorded: list[str] = []
        for file, parts in _group_parts(self._bucket.list(_PARTS_FOLDER)).items():
            end, named = recorded.get(file, 0), self._bucket.head(file)
            # A killed run may have completed the file without deleting its parts.
            first = 0 if named is not None and named.size_bytes == end else end
            unrecorded += [info.name for begin, info in parts.items() if begin >= first]
        self._bucket.delete(unrecorded)
        oldest = time.time() - _PROBE_SECONDS
        probes = [one for one in self._bucket.list_folder(WORK_FOLDER) if one.name.startswith(PROBE_PREFIX)]
        self._bucket.delete([one.name for one in probes if one.modified_seconds <= oldest])

    def remove_work_copies(self) -> None:
        self._mirror.remove()

    def _list_parts(self, file: str) -> _Parts:
        return _group_parts(self._bucket.list(f"{_PARTS_FOLDER}/{file}"))[file]


def _part_name(file: str, begin: int) -> str:
    return f"{_PARTS_FOLDER}/{file}/{begin:0{_DIGITS}}"


def _group_parts(objects: Iterable[ObjectInfo]) -> dict[str, dict[int, ObjectInfo]]:
    """Return the parts among these objects, by the name of the finished file."""
    found: dict[str, dict[int, ObjectInfo]] = defaultdict(dict)
    for info in objects:
        file, _, begin = info.name.removeprefix(f"{_PARTS_FOLDER}/").rpartition("/")
        if file and begin.isdecimal() and info.name == _part_name(file, int(begin)):
            found[file][int(begin)] = info
    return found


def _cover(named: ObjectInfo | None, parts: _Parts) -> list[_Piece]:
    """Return the pieces that make up a file from its first byte to the first gap. Parts are newer than the object under
    the file's own name, and take precedence."""
    named_end = named.size_bytes if named else 0
    pieces: list[_Piece] = []
    position = 0
    while True:
        part = parts.get(position)
        if part is not None and part.size_bytes:
            pieces.append(_Piece(position, position + part.size_bytes, part, position))
        elif named is not None and position < named_end:
            end = min([named_end, *(begin for begin in parts if begin > position)])
            pieces.append(_Piece(position, end, named, 0))
        else:
            return pieces
        position = pieces[-1].end


def _judge(name: str, named: ObjectInfo | None, parts: _Parts) -> FoundFile | None:
    """Return the file that these objects make up. Parts beyond the end of the named object mean that it grows. Other
    parts, which lack the header, were left by a build that ended before deleting them."""
    pieces = tuple(_cover(named, parts))
    end = pieces[-1].end if pieces else 0
    if named is not None and named.size_bytes >= end:
        return _FoundObjects(name, named.size_bytes, True, (_Piece(0, named.size_bytes, named, 0),))
    return _FoundObjects(name, end, False, pieces) if pieces else None


def _read_pieces(bucket: Bucket, pieces: Iterable[_Piece], begin: int, end: int) -> bytes:
    found = []
    for piece in pieces:
        first, last = max(begin, piece.begin) - piece.first, min(end, piece.end) - piece.first
        found.append(bucket.read_range(piece.info.name, first, last, piece.info.etag))
    return b"".join(found)
