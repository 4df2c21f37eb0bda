"""One shard on its way to disk: streamed to a temporary file, synced, renamed, then recorded.

The header holds the number of tokens, and only the last shard of a stream is shorter than the others.
So the header of a full shard is written (and hashed) first, and a short shard is hashed once more.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from fineweb_shards.disk import Disk
from fineweb_shards.durable import WORK_FOLDER, output_error, publish
from fineweb_shards.layouts.base import Layout
from fineweb_shards.tokenizers.ranks import EOT
from fineweb_shards.types import Counts, Cursor, ShardRecord, Tokens

# Written data goes to the disk in the background a little at a time. The fsync at the end is then
# short, and the machine's page cache is not filled with a whole shard of unwritten data.
_SYNC_EVERY_BYTES = 32 * 2**20


class ShardWriter:
    """Writes one shard. Without `commit` nothing but a temporary file, then removed, was there."""

    def __init__(self, folder: Path, layout: Layout, index: int, shard_tokens: int, disk: Disk) -> None:
        self.index = index
        self.tokens = 0
        self._layout = layout
        self._disk = disk
        self._documents = 0
        self.counts = Counts()
        self._expected_tokens = shard_tokens
        self._final = folder / layout.shard_name(index)
        self._temporary = folder / WORK_FOLDER / "shard.tmp"
        self._syncer = ThreadPoolExecutor(1, "sync")
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> ShardWriter:
        try:
            self._file = open(self._temporary, "w+b", buffering=0)
        except OSError as error:
            raise output_error(self._temporary, error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._syncer.shutdown(wait=True)
        self._file.close()
        self._temporary.unlink(missing_ok=True)  # gone already if it was committed

    def write(self, tokens: Tokens, counts: Counts) -> None:
        """Append tokens to the shard."""
        self.counts += counts
        if not len(tokens):
            return
        if not self.tokens:
            header = self._layout.header(self._expected_tokens)
            self._digest.update(header)
            self._put(header)
        data = np.ascontiguousarray(tokens, "<u2").data.cast("B")
        self._digest.update(data)
        self._put(data)
        self.tokens += len(tokens)
        self._documents += int(np.count_nonzero(tokens == EOT))
        self._sync_in_background(len(data))

    def commit(self, end: Cursor) -> ShardRecord:
        """Make the shard durable under its name; the caller then enters it in the ledger."""
        if self.tokens != self._expected_tokens:
            self._finish_short()
        try:
            self._wait_for_sync()
            os.fsync(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
            self._file.close()
            publish(self._temporary, self._final)
        except OSError as error:
            raise output_error(self._final, error) from error
        return ShardRecord(
            name=self._final.name,
            tokens=self.tokens,
            documents=self._documents,
            bytes=size,
            sha256=self._digest.hexdigest(),
            end=end,
            counts=self.counts,
        )

    def _finish_short(self) -> None:
        self._file.seek(0)
        self._put(self._layout.header(self.tokens))
        self._file.seek(0)
        self._digest = hashlib.file_digest(self._file, "sha256")

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:  # an unbuffered write may be short
            view = view[self._disk.attempt(partial(self._write_some, view)) :]

    def _write_some(self, view: memoryview) -> int:
        try:
            return self._file.write(view)
        except OSError as error:
            raise output_error(self._final, error) from error

    def _sync_in_background(self, written_bytes: int) -> None:
        self._unsynced_bytes += written_bytes
        if self._unsynced_bytes < _SYNC_EVERY_BYTES:
            return
        self._unsynced_bytes = 0
        self._wait_for_sync()
        self._syncing = self._syncer.submit(os.fsync, self._file.fileno())

    def _wait_for_sync(self) -> None:
        if self._syncing is not None:
            syncing, self._syncing = self._syncing, None
            try:
                syncing.result()
            except OSError as error:
                raise output_error(self._final, error) from error
