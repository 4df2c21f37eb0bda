"""Define what a run reads: a source is an ordered list of files, each read by its format where it is.

The input of a run has one or more parts, each a source with its own settings, read one after the other or mixed. A
position in the stream is one cursor per part, so that only `Parts.batches` depends on the order of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, islice

from fineweb_shards.errors import BadFileError, NetworkError
from fineweb_shards.events import Observer
from fineweb_shards.formats.base import Format, ReadSettings, load_format
from fineweb_shards.formats.registry import FORMATS
from fineweb_shards.storage.place import LOCAL, InputFile, open_place
from fineweb_shards.texts import NO_TEXTS
from fineweb_shards.types import Batch, Counts, Cursor, Cursors, TextChunk

# With one batch each, 20,000 files of 500 bytes took 54 s of CPU time; joined they take 12.
_SMALL_SHARE = 0.5  # of a batch: a larger file gets its own
_MOST_JOINED = 128  # files per batch: amortizes the cost, and leaves work for all workers
_EXPECTED_FILES = 3  # the current one and the next two
# How many batches of a file are fetched again on a mere suspicion of damage. A file with another tokenizer's
# token_count everywhere must not be fetched twice.
_MOST_DOUBTS = 4


def open_source(files: tuple[InputFile, ...], settings: ReadSettings, observer: Observer | None = None) -> Source:
    """Make a source of these files. `observer` receives waits for the network."""
    names = {(file.place, file.format) for file in files}
    places = {place: open_place(place, settings.hub, settings.max_outage_seconds, observer) for place, _ in names}
    readers = {(place, name): load_format(name)(settings, places[place]) for place, name in names}
    return Source(files, settings, readers)


@dataclass(frozen=True)
class Source:
    files: tuple[InputFile, ...]
    settings: ReadSettings
    readers: dict[tuple[str, str], Format] = field(repr=False)  # by place and format
    epochs: int = 1  # of the files that are not for validation

    @property
    def file_count(self) -> int:
        """The number of files over all epochs. Numbering continues from epoch to epoch."""
        return self.val_files + self.epochs * (len(self.files) - self.val_files)

    def file(self, number: int) -> InputFile:
        if number < len(self.files):
            return self.files[number]
        first = self.val_files
        again = self.files[first + (number - first) % (len(self.files) - first)]
        return replace(again, index=number)

    def batches(self, start: Cursor, end_file: int | None = None) -> Iterator[Batch]:
        """Yield all batches from the cursor up to a file or to the end; small files share batches.

        Starting at the beginning of any batch of an earlier run, as every cursor in a manifest does, yields the same
        batches as that run: so a resume arrives at the same cursors.
        """
        numbers = range(start.file, self.file_count if end_file is None else end_file)
        for kind, files in groupby(map(self.file, numbers), self._joined_kind):
            batches = chain.from_iterable(self._batches_or_problem(file, start) for file in files)
            yield from batches if kind is None else _join_small(batches, self.settings.batch_bytes)

    def _joined_kind(self, file: InputFile) -> int | None:
        """Return what files in one batch must have in common: the epoch, which a cursor inside the batch would not show
        (-1: for validation); None for a file that can't share one: large, or one that workers do not read directly."""
        is_small = file.size_bytes <= self.settings.batch_bytes * _SMALL_SHARE
        is_plain = file.place == LOCAL and FORMATS[file.format].is_text
        if not is_small or not is_plain or self.reader_of(file).by_value(file):
            return None
        return -1 if file.for_validation else (file.index - self.val_files) // (len(self.files) - self.val_files)

    def _batches_or_problem(self, file: InputFile, start: Cursor) -> Iterator[Batch]:
        """Yield the batches of one file; with `--on-bad-file skip`, a problem instead of an error."""
        reader = self.reader_of(file)
        # Prepare this file and the next ones in the same place.
        following = [self.file(i) for i in range(file.index, min(file.index + _EXPECTED_FILES, self.file_count))]
        here = [one for one in following if one.place == file.place and one.problem is None]
        reader.place.expect(here)
        reader.expect([one for one in here if one.format == file.format and reader.place.has(one)])
        first = start if file.index == start.file else Cursor(file.index, 0)
        done = first.position
        if file.problem is not None:
            yield Batch(file.index, done, done, 0, problem=reader.leave_out(BadFileError(file.problem)))
            return
        try:
            for batch in reader.batches(file, first.position, first.starts_mid_document):
                address = None if batch.payload is not None else reader.place.address_of(file)
                yield batch if address is None else replace(batch, address=address)
                done = batch.end
        except BadFileError as error:
            yield Batch(file.index, done, done, 0, problem=reader.leave_out(error))

    def reader_of(self, file: InputFile) -> Format:
        return self.readers[file.place, file.format]

    def chunks(self, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch, or a sample of them, in this process."""
        if batch.members:
            return chain.from_iterable(map(self.chunks, batch.members))
        chunks = self._read(batch)
        return self.settings.sample.choose(chunks, batch.is_kept) if self.settings.sample else chunks

    def _read(self, batch: Batch) -> Iterator[TextChunk]:
        """Read all documents of a batch of one file. Unreadable bytes that came over the network are fetched once more
        before the file is blamed."""
        if batch.problem is not None:
            start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
            if start == end:  # the problem concerns the rest of the file
                end = Cursor(batch.file + 1, 0)
            counts = Counts(bad_parts=1)
            yield TextChunk(NO_TEXTS, start, end, counts=counts, problems=(batch.problem,))
            return
        file = self.file(batch.file)
        reader = self.reader_of(file)
        read: list[int] = []  # the number of documents in each yielded chunk
        try:
            for chunk in reader.chunks(file, batch):
                if _is_doubtful(chunk, batch) and self.fetch_again(batch):
                    break
                yield chunk
                read.append(len(chunk.documents))
            else:
                return
        except BadFileError:
            if not self.fetch_again(batch, damaged=True):
                raise
        chunks = reader.chunks(file, batch)
        if [len(chunk.documents) for chunk in islice(chunks, len(read))] != read:
            raise NetworkError(
                f"{file.path}: the bytes at position {batch.position:,} differ each time they are fetched.",
                "They are damaged on the way: check the network and its proxies, then start over (--fresh); "
                "with --download the files of a dataset are checked by their hashes.",
            )
        for chunk in chunks:
            sound = not _is_doubtful(chunk, batch)
            yield replace(chunk, problems=(*chunk.problems, arrived_damaged(file, batch))) if sound else chunk

    def fetch_again(self, batch: Batch, *, damaged: bool = False) -> bool:
        """Fetch a batch again that is damaged, or looks so; False if that can't help, because the file is to blame."""
        file = self.file(batch.file)
        if not file.is_remote or batch.payload is not None:
            return False
        reader = self.reader_of(file)
        reader.doubts[file.path] += not damaged
        if not damaged and reader.doubts[file.path] > _MOST_DOUBTS:
            return False
        reader.fetch_again(file, batch)
        return True

    def prefetch(self, batch: Batch) -> None:
        if batch.problem is None and batch.payload is None:
            file = self.file(batch.file)
            self.reader_of(file).prefetch(file, batch)

    def reopened(self, observer: Observer | None = None) -> Source:
        """Return a source of the same files, none of them open; a new `observer` replaces the old one."""
        places = {place: reader.place.reopened(observer) for (place, _), reader in self.readers.items()}
        readers = {key: reader.reopened(places[key[0]]) for key, reader in self.readers.items()}
        return replace(self, readers=readers)

    def share_before(self, place: Cursor) -> float | None:
        """Return the share of the input's bytes before a cursor, from 0 to 1; None if unknown."""
        if place.file >= self.file_count:
            return 1.0
        file = self.file(place.file)
        share = self.reader_of(file).share_before(file, place.position)
        if share is None or not self.read_bytes:
            return None
        return (self._bytes_before(place.file) + share * file.size_bytes) / self.read_bytes

    def _bytes_before(self, number: int) -> int:
        first = self.val_files
        epochs, rest = divmod(max(0, number - first), max(1, len(self.files) - first))
        sizes = [file.size_bytes for file in self.files]
        return sum(sizes[: min(first, number)]) + epochs * sum(sizes[first:]) + sum(sizes[first : first + rest])

    def release_before(self, index: int) -> None:
        """Release the files before `index`, whose documents are all in finished shards, unless they are read again."""
        # Looking ahead one epoch is enough.
        needed = {self.file(number).path for number in range(index, min(self.file_count, index + len(self.files)))}
        done = [file for file in map(self.file, range(min(index, len(self.files)))) if file.path not in needed]
        for name, place in {name: reader.place for (name, _), reader in self.readers.items()}.items():
            place.release([file for file in done if file.place == name])

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def read_bytes(self) -> int:
        """Over all epochs."""
        return self._bytes_before(self.file_count)

    @cached_property
    def val_files(self) -> int:
        """How many files, which come first, are for validation only."""
        return sum(file.for_validation for file in self.files)

    @property
    def is_remote(self) -> bool:
        """Whether workers fetch batches over the network."""
        return any(file.is_remote for file in self.files)

    @property
    def costs_requests(self) -> bool:
        """Whether looking at the input takes requests: it is read over the network, or downloaded."""
        return self.is_remote or self.settings.hub is not None

    @property
    def bytes_by_value(self) -> float:
        """How many bytes batches carry in their payload; infinity if files can only be read front to back."""
        carried = [(file, self.reader_of(file)) for file in self.files if self.reader_of(file).by_value(file)]
        return sum(file.size_bytes if reader.is_small(file) else math.inf for file, reader in carried)


def _join_small(batches: Iterator[Batch], most_bytes: int) -> Iterator[Batch]:
    """Join batches of small files, as many as allowed. If the listing fails, earlier batches come before the error."""
    held: list[Batch] = []
    held_bytes = 0
    try:
        for batch in batches:
            is_whole = not (batch.starts_mid_document or batch.ends_mid_document or batch.starts_at_seam)
            is_joined = is_whole and batch.payload is None and batch.problem is None
            is_full = len(held) == _MOST_JOINED or held_bytes + batch.size_bytes > most_bytes
            if held and (is_full or not is_joined):
                yield _joined(held, held_bytes)
                held, held_bytes = [], 0
            if is_joined:
                held.append(batch)
                held_bytes += batch.size_bytes
            else:
                yield batch
    except Exception:
        if held:
            yield _joined(held, held_bytes)
        raise
    if held:
        yield _joined(held, held_bytes)


def _joined(batches: list[Batch], size_bytes: int) -> Batch:
    return replace(batches[0], size_bytes=size_bytes, members=tuple(batches) if len(batches) > 1 else ())


def arrived_damaged(file: InputFile, batch: Batch) -> str:
    """Return the note about bytes that arrived intact only the second time."""
    return (
        f"{file.name}: bytes from position {batch.position:,} on arrived damaged and were fetched again; "
        "the network or a proxy corrupts data"
    )


def _is_doubtful(chunk: TextChunk, batch: Batch) -> bool:
    """Return whether a chunk may come from bytes damaged on the way: part of it, or the next, could not be read."""
    ends_early = chunk.end is not None and chunk.end.position < batch.end
    return bool(chunk.counts.bad_parts or chunk.counts.replaced_characters) or ends_early


def _numbered(batches: Iterator[Batch], part: int) -> Iterator[Batch]:
    for batch in batches:
        members = tuple(replace(one, part=part) for one in batch.members)
        yield replace(batch, part=part, members=members) if part else batch


@dataclass(frozen=True)
class Parts:
    """The parts of the input, in order. Exists in the parent and, by pickling, in every worker."""

    parts: tuple[Source, ...]

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(file for part in self.parts for file in part.files)

    @property
    def starts(self) -> Cursors:
        return tuple(Cursor(0, 0) for _ in self.parts)

    @property
    def ends(self) -> Cursors:
        return tuple(Cursor(part.file_count, 0) for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_remote(self) -> bool:
        return any(part.is_remote for part in self.parts)

    @property
    def bytes_by_value(self) -> float:
        return sum(part.bytes_by_value for part in self.parts)

    def of(self, batch: Batch) -> Source:
        return self.parts[batch.part]

    def file_of(self, batch: Batch) -> InputFile:
        """Return the file of a batch; the first one, if it has several."""
        return self.of(batch).file(batch.file)

    def batches(self, starts: Cursors) -> Iterator[Batch]:
        """Yield all batches from the cursors on: first the files for validation of all parts, then the others."""
        listed = [*enumerate(zip(self.parts, starts, strict=True))]
        for number, (part, start) in listed:
            if start.file < part.val_files:
                yield from _numbered(part.batches(start, part.val_files), number)
        for number, (part, start) in listed:
            first = start if start.file >= part.val_files else Cursor(part.val_files, 0)
            yield from _numbered(part.batches(first), number)

    def listings(self, starts: Cursors) -> list[Iterator[Batch]]:
        """Return the batches of each part from its cursor on, for a mix."""
        listed = enumerate(zip(self.parts, starts, strict=True))
        return [_numbered(part.batches(start), number) for number, (part, start) in listed]

    def chunks(self, batch: Batch) -> Iterator[TextChunk]:
        return self.of(batch).chunks(batch)

    def prefetch(self, batch: Batch) -> None:
        self.of(batch).prefetch(batch)

    def fetch_again(self, batch: Batch, *, damaged: bool = False) -> bool:
        return self.of(batch).fetch_again(batch, damaged=damaged)

    def reopened(self, observer: Observer | None = None) -> Parts:
        return Parts(tuple(part.reopened(observer) for part in self.parts))

    def share_before(self, places: Cursors, *, first_ends: bool = False) -> float | None:
        """Return the share of the input's bytes before the cursors, from 0 to 1; None if unknown. With `first_ends`,
        the input ends with the first part that does."""
        shares = [part.share_before(place) for part, place in zip(self.parts, places, strict=True)]
        if len(shares) == 1:
            return shares[0]
        if first_ends:
            return max((share for share in shares if share is not None), default=None)
        read = 0.0
        for part, place, share in zip(self.parts, places, shares, strict=True):
            if share is None and place != Cursor(0, 0):
                return None
            read += (share or 0.0) * part.read_bytes
        read_bytes = sum(part.read_bytes for part in self.parts)
        return read / read_bytes if read_bytes else None

    def release_before(self, places: Cursors) -> None:
        for part, place in zip(self.parts, places, strict=True):
            part.release_before(place.file)

    def close(self) -> None:
        for part in self.parts:
            part.close()
