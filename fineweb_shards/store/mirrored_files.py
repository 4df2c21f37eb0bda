"""Keep copies of the work folder's small files in a bucket: heartbeat, log, history, report, tokenizer.

None of them is a checkpoint. They are for `status` and `report` elsewhere, and for a run that is finished on
another machine.

A copy is fetched if somebody else has written it. Times don't tell: a file keeps growing while it is
uploaded, and clocks differ. So a file beside the others notes which copies this folder has written or read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_requests import PROBE_PREFIX, ObjectInfo
from fineweb_shards.storage.place import plain_etag
from fineweb_shards.system.durable import WORK_FOLDER, is_lock_name, write_quickly
from fineweb_shards.system.json_values import expect, get, parse_object
from fineweb_shards.system.own_files import is_plain_file, read_file

_NOTES_NAME = "copies.json"
_LARGEST_BYTES = 64 * 2**20  # a tokenizer's file has 20 MB at most
_State = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Copy:
    """What this folder knows of a copy: its ETag, and the hashes of what it may hold. There are several after
    uploads that were not answered: any of them may have been done."""

    etag: str = ""
    sha256: tuple[str, ...] = ()


class MirroredFiles:
    """The files directly in a work folder, and those of a bucket's."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        self._known: dict[str, _State] = {}  # files that are the same in both
        self._copies: dict[str, _Copy] = {}

    def pull(self) -> None:
        """Copy files from the bucket that somebody else has written, or that are missing here."""
        self._copies = _read_notes(self._folder / _NOTES_NAME)
        for info in self._bucket.list_folder(WORK_FOLDER):
            path = self._folder / info.name.rpartition("/")[2]
            if not _is_mirrored(path.name) or info.size_bytes > _LARGEST_BYTES:
                continue
            is_known = info.etag != "" and info.etag == self._copy_of(path.name).etag
            if not is_plain_file(path) or not is_known:
                self._fetch(info, path)

    def remove(self) -> None:
        """Remove the copies in the bucket."""
        names = [info.name for info in self._bucket.list_folder(WORK_FOLDER)]
        self._bucket.delete([name for name in names if _is_mirrored(name.rpartition("/")[2])])
        self._known.clear()
        self._copies.clear()

    def push(self, bucket: Bucket) -> None:
        """Copy files that have changed into the bucket, which may wait less long for it than ours."""
        for path in sorted(self._folder.iterdir()):
            if not _is_mirrored(path.name) or not is_plain_file(path):
                continue
            state = _state_of(path)
            if self._known.get(path.name) != state and state[1] <= _LARGEST_BYTES:
                self._send(path, bucket)
                self._known[path.name] = state

    def _fetch(self, info: ObjectInfo, path: Path) -> None:
        found = self._bucket.read(info.name, _LARGEST_BYTES)
        if found is None:
            return
        data, version = found
        digest = hashlib.sha256(data).hexdigest()
        if not is_plain_file(path) or digest not in self._copy_of(path.name).sha256:
            write_quickly(path, data)
            self._known[path.name] = _state_of(path)
        self._note(path.name, _Copy(plain_etag(version.etag), (digest,)))

    def _send(self, path: Path, bucket: Bucket) -> None:
        data = read_file(path, _LARGEST_BYTES)
        digest = hashlib.sha256(data).hexdigest()
        before = self._copy_of(path.name)
        # Before it is sent: the answer may never come.
        self._note(path.name, _Copy(before.etag, (*before.sha256, digest)))
        version = bucket.overwrite(f"{WORK_FOLDER}/{path.name}", data)
        self._note(path.name, _Copy(plain_etag(version.etag), (digest,)))

    def _copy_of(self, name: str) -> _Copy:
        return self._copies.get(name, _Copy())

    def _note(self, name: str, copy: _Copy) -> None:
        self._copies[name] = copy
        text = json.dumps({name: asdict(one) for name, one in self._copies.items()})
        with contextlib.suppress(OSError):  # a full disk: then a copy is fetched that need not be
            write_quickly(self._folder / _NOTES_NAME, text.encode())


def _read_notes(path: Path) -> dict[str, _Copy]:
    """Return what was noted; nothing, if it is missing or damaged."""
    try:
        notes = parse_object(read_file(path))
        copies = {name: expect(name, note, dict) for name, note in notes.items()}
        return {
            name: _Copy(get(note, "etag", str), tuple(get(note, "sha256", list)))
            for name, note in copies.items()
        }
    except (OSError, ValueError):
        return {}


def _is_mirrored(name: str) -> bool:
    is_probe = f"{WORK_FOLDER}/{name}".startswith(PROBE_PREFIX)
    return not (is_probe or is_lock_name(name) or name == _NOTES_NAME or name.endswith(".tmp"))


def _state_of(path: Path) -> _State:
    state = path.stat()
    return state.st_mtime_ns, state.st_size
