"""A file of tokens while it grows: it is in the work folder, and gets its final name when it is whole.

Most files are a shard of one segment. A file that grows over several checkpoints has a segment for each, and
continues after the last recorded one after a crash. Workers write the tokens; here is which byte comes next.
The header contains the number of tokens, so it is written at the end, when the file is sealed
(store/shard_files.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.store import GrowingPart, Segment, Store
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.own_files import ForeignFileError, open_own
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Placement, ShardSlice, Split


class GrowingFile:
    """Knows where in a file the next tokens belong. `recorded_tokens` of it are in the manifest already."""

    def __init__(
        self,
        name: str,
        store: Store,
        shard_format: ShardFormat,
        split: Split,
        disk: Disk,
        *,
        recorded_tokens: int = 0,
    ) -> None:
        self.name = name
        self.tokens = recorded_tokens  # for which there are placements, recorded ones included
        self.is_recorded = recorded_tokens > 0  # the manifest names it
        self._store = store
        self._split: Split = split
        self._format = shard_format
        self._disk = disk
        self._part: GrowingPart | None = None  # to which the next tokens belong
        self._paths: list[Path] = []  # of all parts so far
        self._start_segment()

    def open(self) -> GrowingPart:
        """Return the part for the next tokens; create it, or continue the file, if there is none. Not in the
        constructor, so that the caller knows the file even if this is interrupted."""
        if self._part is None:
            self._part = self._disk.attempt(self._prepare)
            self._paths.append(self._part.path)
        return self._part

    def place(self, part: ShardSlice) -> Placement:
        """Return where the tokens of a slice belong: after all others."""
        file = self.open()
        offset = self._format.offset_bytes(self.tokens) - file.begin
        self.tokens += part.tokens
        self._documents += part.documents
        return Placement(str(file.path), offset, part.ranges)

    @property
    def has_open_segment(self) -> bool:
        """Whether there are tokens after the last segment."""
        return self.tokens > self._begin

    def end_segment(self, *, whole: bool) -> Segment:
        """End the current segment, and the file if it is `whole`; return the segment."""
        file = self.open()
        offset = self._format.offset_bytes(self._begin) if self._begin or not whole else 0
        segment = Segment(
            path=file.path,
            begin=file.begin,
            name=self.name,
            split=self._split,
            offset=offset,
            size_bytes=self._format.offset_bytes(self.tokens) - offset,
            tokens=self.tokens - self._begin,
            documents=self._documents,
            whole=whole,
            header=self._format.header(self.tokens) if whole else b"",
        )
        if not self._store.grows_in_place:
            self._part = None
        self._start_segment()
        return segment

    def discard(self, kept: Collection[Path] = ()) -> None:
        """Remove the file except for these paths, and free its space even while a worker has it open."""
        for path in self._paths:
            if path not in kept:
                with contextlib.suppress(FileNotFoundError, ForeignFileError):  # gone, or not ours any more
                    with open_own(path, "r+b") as file:
                        file.truncate(0)
                    path.unlink()

    def _start_segment(self) -> None:
        self._begin = self.tokens
        self._documents = 0

    def _prepare(self) -> GrowingPart:
        try:
            return self._store.prepare(
                self.name, self._format.offset_bytes(self.tokens) if self.tokens else 0
            )
        except OSError as error:
            raise output_error(self._store.folder / self.name, error) from error
