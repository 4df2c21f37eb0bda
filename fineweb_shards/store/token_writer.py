"""Write tokens into files at given offsets, in whichever process has them.

The files exist: the control plane creates them, and names them when they are whole. Several processes write
to one file, each by a descriptor and to ranges of its own, so nothing needs a lock.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np

from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.own_files import open_descriptor
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Placement, Tokens

# Data is synced in small steps, so that the sync of a whole file is short, and the page cache does not fill
# with a whole shard of unwritten data.
SYNC_EVERY_BYTES = 32 * 2**20
_OPEN_FILES = 4  # both splits' files, and the ones before them


class TokenWriter:
    """Writes tokens in the format of the run's files. While the disk is full, it waits and tries again."""

    def __init__(self, shard_format: ShardFormat, disk: Disk) -> None:
        self._format = shard_format
        self._disk = disk
        self._files: OrderedDict[str, int] = OrderedDict()  # path to descriptor, the last used last
        self._unsynced_bytes = 0

    def write(self, tokens: Tokens, placement: Placement) -> None:
        """Write ranges of tokens where they belong."""
        parts = [tokens[begin:end] for begin, end in placement.ranges.tolist()]
        data = self._format.to_bytes(parts[0] if len(parts) == 1 else np.concatenate(parts))
        self._write_at(placement.path, placement.offset, data)
        if os.name == "nt":  # where an open file can't be renamed
            self.close()

    def sync(self) -> None:
        """Make everything durable that is written, and visible to other machines."""
        for path in list(self._files):
            self._sync(path)

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _write_at(self, path: str, offset: int, data: memoryview) -> None:
        while data:  # a write may be short
            written = self._disk.attempt(partial(self._write_some, path, offset, data))
            offset, data = offset + written, data[written:]
            self._unsynced_bytes += written
        if self._unsynced_bytes >= SYNC_EVERY_BYTES:
            self._unsynced_bytes = 0
            self._sync(path)

    def _write_some(self, path: str, offset: int, data: memoryview) -> int:
        try:
            file = self._open(path)
            os.lseek(file, offset, os.SEEK_SET)  # not `pwrite`, which Windows lacks
            return os.write(file, data)
        except OSError as error:
            raise output_error(Path(path), error) from error

    def _sync(self, path: str) -> None:
        try:
            os.fsync(self._open(path))
        except OSError as error:
            raise output_error(Path(path), error) from error

    def _open(self, path: str) -> int:
        if path not in self._files:
            while len(self._files) >= _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
            self._files[path] = open_descriptor(path, os.O_WRONLY)
        self._files.move_to_end(path)
        return self._files[path]
