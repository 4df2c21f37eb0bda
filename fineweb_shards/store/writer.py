"""Write one file of tokens: stream it to a temporary file, sync it, and rename it when it is finished.

Most files are a shard of one segment: they get one record, when they are renamed. A file that grows over
several checkpoints gets a record per segment, and continues after the last recorded one after a crash. The
caller saves the records in the manifest.

The header contains the number of tokens, and only the last shard of a stream is shorter than the others.
So the header of a full shard is written (and hashed) first, and a shorter shard is hashed again.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import growing_path
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import output_error, publish, sync_folder
from fineweb_shards.types import Counts, Cursor, ShardRecord, Split, Tokens

# Data is synced in the background in small steps, so that the final fsync is short and the page cache does
# not fill with a whole shard of unwritten data.
_SYNC_EVERY_BYTES = 32 * 2**20
_READ_BYTES = 4 * 2**20


class ShardWriter:
    """Writes one file. Tokens that no record names are removed, on `close` or when the file is reopened."""

    def __init__(
        self,
        folder: Path,
        shard_format: ShardFormat,
        split: Split,
        index: int,
        shard_tokens: int,
        disk: Disk,
        *,
        kept_tokens: int = 0,
        digits: int = 0,
    ) -> None:
        self.split = split
        self.tokens = kept_tokens  # in the file, including `kept_tokens`, which the manifest records
        self.final = folder / shard_format.layout.shard_name(split, index, digits)
        self._format = shard_format
        self._disk = disk
        self._expected_tokens = shard_tokens
        self._temporary = growing_path(self.final)
        self._hasher = ThreadPoolExecutor(1, "hash")
        self._syncer = ThreadPoolExecutor(1, "sync")
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0
        self._start_segment()

    def __enter__(self) -> ShardWriter:
        try:
            if self.tokens and not self._temporary.exists():
                os.replace(self.final, self._temporary)  # it was finished, but then a part of it was lost
            self._file = open(self._temporary, "r+b" if self.tokens else "w+b", buffering=0)
            if self.tokens:
                os.ftruncate(self._file.fileno(), self._format.offset_bytes(self.tokens))
                self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise output_error(self._temporary, error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; remove it if none of it is recorded."""
        self._hasher.shutdown(wait=True)
        self._syncer.shutdown(wait=True)
        self._file.close()
        if not self._begin:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file, if it was not renamed."""
        self._temporary.unlink(missing_ok=True)

    def write(self, tokens: Tokens, documents: int) -> None:
        """Append tokens, of which `documents` are EOTs."""
        if not self.tokens:
            header = self._format.header(self._expected_tokens)
            self._digest.update(header)
            self._put(header)
        data = self._format.to_bytes(tokens)
        hashing = self._hasher.submit(self._digest.update, data)  # in parallel with writing the same bytes
        self._put(data)
        hashing.result()
        self.tokens += len(tokens)
        self._documents += documents
        self._sync_in_background(len(data))

    def commit(self, end: Cursor, *, whole: bool = True) -> ShardRecord:
        """Make the segment durable, rename the file if it is `whole` (finished), and return the record.

        The caller saves the record in the manifest. `end` is the place in the stream after the segment.
        """
        offset = self._format.offset_bytes(self._begin) if self._begin or not whole else 0
        try:
            # A file that was reopened may have been finished before, with a header for fewer tokens.
            if whole and (self.tokens != self._expected_tokens or self._begin):
                self._file.seek(0)
                self._put(self._format.header(self.tokens))
                self._file.seek(0, os.SEEK_END)
            full = whole and self.tokens == self._expected_tokens
            if self._format.header_bytes and not self._begin and not full:
                self._hash_again(offset)
            self._wait_for_sync()
            os.fsync(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
            if whole:
                self._file.close()
                publish(self._temporary, self.final)
            else:
                sync_folder(self._temporary.parent)  # the manifest will rely on the file being there
        except OSError as error:
            raise output_error(self.final, error) from error
        record = ShardRecord(
            name=self.final.name,
            split=self.split,
            offset=offset,
            tokens=self.tokens - self._begin,
            documents=self._documents,
            bytes=size - offset,
            sha256=self._digest.hexdigest(),
            end=end,
            counts=Counts(),
        )
        self._start_segment()
        return record

    @property
    def has_unrecorded_tokens(self) -> bool:
        """Whether tokens were written since the last record."""
        return self.tokens > self._begin

    def _start_segment(self) -> None:
        self._begin = self.tokens
        self._documents = 0
        self._digest = hashlib.sha256()

    def _hash_again(self, offset: int) -> None:
        """Hash the segment from the file, because the hash so far includes a wrong header, or any header."""
        self._file.seek(offset)
        self._digest = hashlib.sha256()
        while data := self._file.read(_READ_BYTES):
            self._digest.update(data)

    def _put(self, data: bytes | memoryview) -> None:
        """Write all bytes; while the disk is full, wait and try again."""
        view = memoryview(data)
        while view:  # an unbuffered write may be short
            view = view[self._disk.attempt(partial(self._write_some, view)) :]

    def _write_some(self, view: memoryview) -> int:
        try:
            return self._file.write(view)
        except OSError as error:
            raise output_error(self.final, error) from error

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
                raise output_error(self.final, error) from error
