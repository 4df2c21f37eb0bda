"""A file of tokens while it grows: it is in the work folder, and gets its final name when it is whole.

Most files are a shard of one segment. A file that grows over several checkpoints has a segment for each, and
continues after the last recorded one after a crash. Workers write the tokens; here are the header, and which
byte comes next.

The header contains the number of tokens, and only the last shard of a stream is shorter than the others. So
the header of a full shard is written first, and that of a shorter one replaced at the end.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import growing_path
from fineweb_shards.store.segment import Segment
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import output_error
from fineweb_shards.types import Placement, ShardSlice, Split


class GrowingFile:
    """Knows where in a file the next tokens belong. `recorded_tokens` of it are in the manifest already."""

    def __init__(
        self,
        final: Path,
        shard_format: ShardFormat,
        split: Split,
        shard_tokens: int,
        disk: Disk,
        *,
        recorded_tokens: int = 0,
    ) -> None:
        self.final = final
        self.path = growing_path(final)
        self.tokens = recorded_tokens  # for which there are placements, recorded ones included
        self.is_recorded = recorded_tokens > 0  # the manifest names it
        self._split: Split = split
        self._format = shard_format
        self._expected_tokens = shard_tokens
        self._disk = disk
        self._start_segment()

    def open(self) -> None:
        """Create the file, or continue it. Not in the constructor, so that the caller knows the file even if
        this is interrupted."""
        self._disk.attempt(self._open)

    def place(self, part: ShardSlice) -> Placement:
        """Return where the tokens of a slice belong: after all others."""
        offset = self._format.offset_bytes(self.tokens)
        self.tokens += part.tokens
        self._documents += part.documents
        return Placement(str(self.path), offset, part.ranges)

    @property
    def has_open_segment(self) -> bool:
        """Whether there are tokens after the last segment."""
        return self.tokens > self._begin

    def end_segment(self, *, whole: bool) -> Segment:
        """End the current segment, and the file if it is `whole`; return the segment."""
        offset = self._format.offset_bytes(self._begin) if self._begin or not whole else 0
        segment = Segment(
            path=self.path,
            final=self.final,
            split=self._split,
            offset=offset,
            bytes=self._format.offset_bytes(self.tokens) - offset,
            tokens=self.tokens - self._begin,
            documents=self._documents,
            whole=whole,
        )
        # A file that was reopened may have been finished before, with a header for fewer tokens.
        if whole and (self.tokens != self._expected_tokens or self._begin):
            self._disk.attempt(partial(self._write_header, self.tokens))
        self._start_segment()
        return segment

    def discard(self) -> None:
        """Remove the file, and free its space even while a worker has it open."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.path, 0)
            self.path.unlink()

    def _start_segment(self) -> None:
        self._begin = self.tokens
        self._documents = 0

    def _open(self) -> None:
        """Create the file, or cut off what a killed run has written after the last recorded token."""
        try:
            if not self.tokens:
                self.path.write_bytes(self._format.header(self._expected_tokens))
                return
            if not self.path.exists():
                os.replace(self.final, self.path)  # it was finished, but then a part of it was lost
            with open(self.path, "r+b") as file:
                os.ftruncate(file.fileno(), self._format.offset_bytes(self.tokens))
        except OSError as error:
            if not self.is_recorded:
                self.discard()
            raise output_error(self.path, error) from error

    def _write_header(self, tokens: int) -> None:
        try:
            with open(self.path, "r+b", buffering=0) as file:
                file.write(self._format.header(tokens))
        except OSError as error:
            raise output_error(self.path, error) from error
