"""The input of a run: one or more parts, each a source of its own, read one after the other.

A part has its own files and settings. A place in the stream is a cursor for each part, so that nothing after
this assumes an order of the parts: only `batches` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fineweb_shards.events import Observer
from fineweb_shards.sources.source import Source
from fineweb_shards.storage.place import InputFile
from fineweb_shards.types import Batch, Cursor, Cursors, TextChunk


@dataclass(frozen=True)
class Parts:
    """The parts of the input, in order. Exists in the parent and, by pickling, in every worker."""

    parts: tuple[Source, ...]

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files of all parts."""
        return tuple(file for part in self.parts for file in part.files)

    @property
    def only(self) -> Source:
        """The only part, for code that knows no others yet, such as the plan's."""
        (part,) = self.parts
        return part

    @property
    def starts(self) -> Cursors:
        """The beginning of the stream."""
        return tuple(Cursor(0, 0) for _ in self.parts)

    @property
    def ends(self) -> Cursors:
        """The end of the stream."""
        return tuple(Cursor(len(part.files), 0) for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_remote(self) -> bool:
        """Whether workers fetch batches over the network."""
        return any(part.is_remote for part in self.parts)

    @property
    def bytes_by_value(self) -> float:
        """How many bytes batches carry with them; infinity if files can only be read front to back."""
        return sum(part.bytes_by_value for part in self.parts)

    def of(self, batch: Batch) -> Source:
        """Return the part to which a batch belongs."""
        return self.parts[batch.part]

    def file_of(self, batch: Batch) -> InputFile:
        """Return the file of a batch; the first one, if it has several."""
        return self.parts[batch.part].files[batch.file]

    def batches(self, starts: Cursors) -> Iterator[Batch]:
        """Yield all batches from the cursors on, one part after the other."""
        for number, (part, start) in enumerate(zip(self.parts, starts, strict=True)):
            for batch in part.batches(start):
                yield _of_part(batch, number)

    def chunks(self, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch in this process."""
        return self.of(batch).chunks(batch)

    def prefetch(self, batch: Batch) -> None:
        """Fetch the batch's bytes ahead, if they have to be fetched."""
        self.of(batch).prefetch(batch)

    def fetch_again(self, batch: Batch, *, damaged: bool = False) -> bool:
        """Have a batch that was just read fetched again; False if that would change nothing."""
        return self.of(batch).fetch_again(batch, damaged=damaged)

    def reopened(self, observer: Observer | None = None) -> Parts:
        """Return the same parts with no file open; a new `observer` replaces the old one."""
        return Parts(tuple(part.reopened(observer) for part in self.parts))

    def share_before(self, places: Cursors) -> float | None:
        """Return the share of the input's bytes that is before a place, from 0 to 1; None if unknown."""
        shares = [part.share_before(place) for part, place in zip(self.parts, places, strict=True)]
        if len(shares) == 1:
            return shares[0]
        read = 0.0
        for part, place, share in zip(self.parts, places, shares, strict=True):
            if share is None and place != Cursor(0, 0):
                return None
            read += (share or 0.0) * part.size_bytes
        return read / self.size_bytes if self.size_bytes else None

    def release_before(self, places: Cursors) -> None:
        """Release the files before a place: all their documents are in finished shards."""
        for part, place in zip(self.parts, places, strict=True):
            part.release_before(place.file)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _of_part(batch: Batch, number: int) -> Batch:
    """Return a batch that says to which part it belongs, and its members with it."""
    if not number:
        return batch
    return replace(batch, part=number, members=tuple(replace(one, part=number) for one in batch.members))
