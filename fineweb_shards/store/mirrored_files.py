"""Keep copies of the work folder's small files in a bucket: heartbeat, log, history, report, tokenizer.

None of them is a checkpoint. They are for `status` and `report` elsewhere, and for a run that is finished on
another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.buckets.conditional_writes import PROBE_PREFIX
from fineweb_shards.system.durable import WORK_FOLDER, is_lock_name, write_quickly

_LARGEST_BYTES = 64 * 2**20  # a tokenizer's file has 20 MB at most
_State = tuple[int, int]


class MirroredFiles:
    """The files directly in a work folder, and those of a bucket's."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        self._known: dict[str, _State] = {}  # files that are the same in both

    def pull(self) -> None:
        """Copy files from the bucket, unless the one that is here is newer."""
        for info in self._bucket.list_folder(WORK_FOLDER):
            path = self._folder / info.name.rpartition("/")[2]
            if not _is_mirrored(path.name) or info.size_bytes > _LARGEST_BYTES:
                continue
            if path.is_file() and path.stat().st_mtime >= info.modified_seconds:
                continue
            found = self._bucket.read(info.name)
            if found is not None:
                write_quickly(path, found[0])
                os.utime(path, (info.modified_seconds, info.modified_seconds))
                self._known[path.name] = _state_of(path)

    def remove(self) -> None:
        """Remove the copies in the bucket."""
        names = [info.name for info in self._bucket.list_folder(WORK_FOLDER)]
        self._bucket.delete([name for name in names if _is_mirrored(name.rpartition("/")[2])])
        self._known.clear()

    def push(self, bucket: Bucket) -> None:
        """Copy files that have changed into the bucket, which may wait less long for it than ours."""
        for path in sorted(self._folder.iterdir()):
            if not _is_mirrored(path.name) or not path.is_file():
                continue
            state = _state_of(path)
            if self._known.get(path.name) != state and state[1] <= _LARGEST_BYTES:
                bucket.overwrite(f"{WORK_FOLDER}/{path.name}", path.read_bytes())
                self._known[path.name] = state


def _is_mirrored(name: str) -> bool:
    is_probe = f"{WORK_FOLDER}/{name}".startswith(PROBE_PREFIX)
    return not (is_probe or is_lock_name(name) or name.endswith(".tmp"))


def _state_of(path: Path) -> _State:
    state = path.stat()
    return state.st_mtime_ns, state.st_size
