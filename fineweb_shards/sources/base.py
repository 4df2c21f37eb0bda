"""Define a source: an ordered list of files, cut into batches in the parent and read in the workers.

A new kind of file is a subclass of `Format` with two methods: `batches` runs once, in the parent, and should
read next to nothing; `chunks` runs in the workers and does the reading.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice

from fineweb_shards.errors import BadFileError, NetworkError
from fineweb_shards.events import Observer
from fineweb_shards.sources.where import Where
from fineweb_shards.system.retry import Retrier
from fineweb_shards.texts import NO_TEXTS
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk
from fineweb_shards.vocabulary import Vocabulary

STANDARD_INPUT = "-"
_BY_VALUE = ("hub-rows", "bucket-csv", "bucket-tsv")
_SMALL_TEXT_BYTES = 2**20
# With a batch for each, 20,000 files of 500 bytes took 54 s of processor time; together they take 12.
_JOINED_FORMATS = ("text", "jsonl", "csv", "tsv")
_SMALL_SHARE = 0.5  # of a batch: a larger file has one of its own
_MOST_JOINED = 128  # files in one batch: enough to make up for it, and workers still share what there is
_EXPECTED_FILES = 3  # the current one and the next two
# How many batches of a file are fetched again because something in them only looks wrong. A file whose every
# token_count is another tokenizer's must not be fetched twice.
_MOST_DOUBTS = 4


@dataclass(frozen=True, slots=True)
class HubRef:
    """A dataset on the hub at one commit, and how to read it."""

    dataset: str
    name: str
    hub_split: str
    commit: str
    work_folder: str  # for what the processes of a run share, and for downloads
    keep_downloads: bool


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings that decide how documents are read from files."""

    text_column: str
    separator: str
    batch_bytes: int
    skip_bad: bool
    vocabulary: Vocabulary  # whose tokens FineWeb's `token_count` counts, or not
    max_outage_seconds: int = 0  # of the network, if files are remote
    hub: HubRef | None = None
    where: Where | None = None  # which documents to read; None: all
    tokens_column: str | None = None  # holds the documents as lists of ids; None: text_column holds them
    largest_page_bytes: int = 2**40  # of a parquet file, unpacked: what is larger does not fit into memory

    @property
    def column(self) -> str:
        """The column that holds the documents, as text or as ids."""
        return self.text_column if self.tokens_column is None else self.tokens_column

    def column_hint(self, column: str = "column") -> str:
        """Return what to do if that column, or key, is not there or holds something else."""
        if self.tokens_column is None:
            return f"Name the {column} with the text: --text-column."
        return f"Name the {column} with the lists of ids: --tokens-column; for text it is --text-column."


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file, with what is needed to notice that it has changed."""

    index: int
    path: str  # or STANDARD_INPUT, or the address of an object in a bucket
    name: str  # for messages and the manifest: the path relative to the --input it was found by
    format: str  # a key of formats.FORMATS
    compression: str | None  # "gzip", "zstd" or None
    size_bytes: int
    mtime_ns: int
    content_hash: str  # of samples of a local file; for a remote one, the hub's hash, or a bucket's ETag
    problem: str | None = None  # why nothing of it can be read: a broken link, a folder without permission
    is_pipe: bool = False  # standard input or a named pipe: can be read once, front to back
    for_validation: bool = False  # all its documents: named by --val-input
    # Of a text, if no --separator is given: what was found in it (sources/detection.py). "": see the setting.
    separator: str = ""

    @property
    def kind(self) -> str:
        """What is in the file, wherever it is: parquet, jsonl, text …"""
        return self.format.rpartition("-")[2]

    @property
    def is_remote(self) -> bool:
        """Whether it is read over the network."""
        return self.format.startswith(("hub-", "bucket-"))

    @property
    def is_missing(self) -> bool:
        """Whether it comes from the hub, is read from the disk, and is not there yet."""
        return self.format.startswith("download-") and not os.path.exists(self.path)

    @property
    def by_value(self) -> bool:
        """Whether the file can only be read front to back, so that its batches carry their bytes."""
        # CSV in a bucket, too: only who has read all before a record knows where it begins, and it should be
        # fetched once.
        return (
            self.is_pipe or self.compression is not None or self.format in _BY_VALUE or self.is_small_object
        )

    @property
    def is_small_object(self) -> bool:
        """Whether it is a text in a bucket that is fetched once, whole, by the parent: to list its documents
        the parent has to look at a good part of it anyway."""
        is_text = self.format in ("bucket-text", "bucket-jsonl") and self.compression is None
        return is_text and self.size_bytes <= _SMALL_TEXT_BYTES


class Format(ABC):
    """Reads documents from one kind of file. Exists in the parent and, by pickling, in every worker."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        self.settings = settings
        self.retrier = Retrier(settings.max_outage_seconds, observer)
        self.doubts = Counter[str]()  # by path: batches that looked wrong

    def __reduce__(self) -> tuple[type[Format], tuple[ReadSettings]]:
        return type(self), (self.settings,)  # without open files and connections, which can't be pickled

    def reopened(self, observer: Observer | None) -> Format:
        """Return a format with the same settings and no file open; a new `observer` replaces the old one."""
        return type(self)(self.settings, observer or self.retrier.observer)

    @abstractmethod
    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        """Yield batches that refer to the file's documents from `position` on, in order."""

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        """Yield batches like `batches`, from which about `limit_bytes` will be read: where bytes have to be
        fetched, they are no larger than that needs."""
        return self.batches(file, position, False)

    @abstractmethod
    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch."""

    @abstractmethod
    def close(self) -> None:
        """Close files that were kept open for the next batch."""

    def leave_out(self, error: BadFileError) -> str:
        """Return the message that something is left out; without `--on-bad-file skip`, raise the error."""
        if not self.settings.skip_bad:
            raise error
        return f"left out: {error.message}"

    def expect(self, files: Sequence[InputFile]) -> None:
        """Prepare files that will be read next, such as by downloading them. Runs in the parent."""

    def make_ready(self, file: InputFile) -> None:
        """Wait until a file can be opened, such as for its download. Called before it is."""

    def release(self, files: Sequence[InputFile]) -> None:
        """Free what is kept of files that will never be read again. Runs in the parent."""

    def share_before(self, file: InputFile, position: int) -> float | None:
        """Return the share of a file before a position, from 0 to 1; None if unknown. Runs in the parent."""
        return None

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        """Begin to fetch the bytes of a batch that will be read soon, and don't wait for them. Runs in a
        worker, in the thread that receives orders."""

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        """Drop what was fetched of a batch that has been read, and fetch it again for the next reading."""


@dataclass(frozen=True)
class Source:
    """The files of a run, and the formats that read them."""

    files: tuple[InputFile, ...]
    formats: dict[str, Format] = field(repr=False)
    settings: ReadSettings

    def batches(self, start: Cursor) -> Iterator[Batch]:
        """Yield all batches from the cursor on, over all files; of small files, several in one.

        Which ones depends on where it begins, but not if it begins with a batch of an earlier run, as every
        cursor in a manifest does: so a resume ends with the same cursors.
        """
        for kind, files in groupby(self.files[start.file :], self._joined_kind):
            batches = chain.from_iterable(self._batches_or_problem(file, start) for file in files)
            yield from batches if kind is None else _join_small(batches, self.settings.batch_bytes)

    def _joined_kind(self, file: InputFile) -> bool | None:
        """Return what files must have in common to be in one batch: the split that they may be meant for;
        None if a file is large, or not simply read by a worker."""
        is_small = file.size_bytes <= self.settings.batch_bytes * _SMALL_SHARE
        is_joined = is_small and file.format in _JOINED_FORMATS and not file.by_value
        return file.for_validation if is_joined else None

    def _batches_or_problem(self, file: InputFile, start: Cursor) -> Iterator[Batch]:
        """Yield the batches of one file; with `--on-bad-file skip`, a problem instead of an error."""
        first = file.index == start.file
        position, starts_mid_document = (start.position, start.starts_mid_document) if first else (0, False)
        done = position
        self.formats[file.format].expect(self.files[file.index : file.index + _EXPECTED_FILES])
        try:
            for batch in self._batches_of(file, position, starts_mid_document):
                yield batch
                done = batch.end
        except BadFileError as error:
            if not self.settings.skip_bad:
                raise
            yield Batch(file.index, done, done, 0, problem=f"left out: {error.message}")

    def _batches_of(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        if file.problem is not None:
            raise BadFileError(file.problem)
        return self.formats[file.format].batches(file, position, starts_mid_document)

    def chunks(self, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch in this process. What can't be read, and came over the network, is
        fetched once more before the file is blamed."""
        if batch.members:
            for member in batch.members:
                yield from self.chunks(member)
            return
        if batch.problem is not None:
            start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
            if start == end:  # the problem concerns the rest of the file, however long that is
                end = Cursor(batch.file + 1, 0)
            counts = Counts(bad_parts=1)
            yield TextChunk(NO_TEXTS, start, end, counts=counts, problems=(batch.problem,))
            return
        file = self.files[batch.file]
        format_ = self.formats[file.format]
        read: list[int] = []  # the number of documents in each chunk that was passed on
        try:
            for chunk in format_.chunks(file, batch):
                if _is_doubtful(chunk, batch) and self.fetch_again(batch):
                    break
                yield chunk
                read.append(len(chunk.documents))
            else:
                return
        except BadFileError:
            if not self.fetch_again(batch, damaged=True):
                raise
        chunks = format_.chunks(file, batch)
        if [len(chunk.documents) for chunk in islice(chunks, len(read))] != read:
            raise NetworkError(
                f"{file.path}: what is at position {batch.position:,} differs each time it is fetched.",
                "Bytes are damaged on the way: check the network and its proxies, then start over (--fresh); "
                "with --download the files of a dataset are checked by their hashes.",
            )
        for chunk in chunks:
            sound = not _is_doubtful(chunk, batch)
            yield replace(chunk, problems=(*chunk.problems, arrived_damaged(file, batch))) if sound else chunk

    def fetch_again(self, batch: Batch, *, damaged: bool = False) -> bool:
        """Have a batch that was just read fetched again, because it is damaged or looks so; False if that
        would change nothing, and the file is to blame."""
        file = self.files[batch.file]
        if not file.is_remote or batch.payload is not None:
            return False
        format_ = self.formats[file.format]
        format_.doubts[file.path] += not damaged
        if not damaged and format_.doubts[file.path] > _MOST_DOUBTS:
            return False
        format_.fetch_again(file, batch)
        return True

    def prefetch(self, batch: Batch) -> None:
        """Fetch the batch's bytes ahead, if its format has to fetch them."""
        if batch.problem is None and batch.payload is None:
            file = self.files[batch.file]
            self.formats[file.format].prefetch(file, batch)

    def reopened(self, observer: Observer | None = None) -> Source:
        """Return a source of the same files with none of them open; a new `observer` replaces the old one."""
        formats = {name: one.reopened(observer) for name, one in self.formats.items()}
        return Source(self.files, formats, self.settings)

    def share_before(self, place: Cursor) -> float | None:
        """Return the share of the input's bytes that is before a cursor, from 0 to 1; None if unknown."""
        if place.file >= len(self.files):
            return 1.0
        file = self.files[place.file]
        share = self.formats[file.format].share_before(file, place.position)
        if share is None or not self.size_bytes:
            return None
        before = sum(earlier.size_bytes for earlier in self.files[: place.file])
        return (before + share * file.size_bytes) / self.size_bytes

    def release_before(self, index: int) -> None:
        """Release the files before `index`: all their documents are in finished shards."""
        for format_ in self.formats.values():
            format_.release(self.files[:index])

    def close(self) -> None:
        for format_ in self.formats.values():
            format_.close()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_remote(self) -> bool:
        """Whether workers fetch batches over the network."""
        return any(file.is_remote for file in self.files)


def _join_small(batches: Iterator[Batch], most_bytes: int) -> Iterator[Batch]:
    """Yield the batches of small files, as many as allowed in one. If the listing fails, those before come
    first."""
    held: list[Batch] = []
    held_bytes = 0
    try:
        for batch in batches:
            is_whole = not (batch.starts_mid_document or batch.ends_mid_document or batch.starts_at_seam)
            is_joined = is_whole and batch.payload is None and batch.problem is None
            is_full = len(held) == _MOST_JOINED or held_bytes + batch.size_bytes > most_bytes
            if held and (is_full or not is_joined):
                yield _joined(held)
                held, held_bytes = [], 0
            if is_joined:
                held.append(batch)
                held_bytes += batch.size_bytes
            else:
                yield batch
    except Exception:
        if held:
            yield _joined(held)
        raise
    if held:
        yield _joined(held)


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    size_bytes = sum(batch.size_bytes for batch in batches)
    return replace(batches[0], size_bytes=size_bytes, members=tuple(batches))


def arrived_damaged(file: InputFile, batch: Batch) -> str:
    """Return the note about bytes that were sound only when they were fetched again."""
    return (
        f"{file.name}: bytes from position {batch.position:,} on arrived damaged and were fetched again; "
        "the network, or a proxy, damages what it carries"
    )


def _is_doubtful(chunk: TextChunk, batch: Batch) -> bool:
    """Return whether a chunk may come from bytes that were damaged on the way: something in it could not be
    read, or what is next in its batch."""
    ends_early = chunk.end is not None and chunk.end.position < batch.end
    return bool(chunk.counts.bad_parts or chunk.counts.replaced_characters) or ends_early


def decode_text(data: bytes) -> tuple[str, int]:
    """Decode UTF-8; return the text, and the number of characters that replace invalid bytes."""
    try:
        return data.decode("utf-8"), 0
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())


def utf8_bytes(text: str) -> int:
    """Return the length of a text in UTF-8, a lone surrogate counting as U+FFFD. Quick for ASCII."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def first_line(error: Exception) -> str:
    """Return what a library's error says, in one line without a full stop."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def read_error(file: InputFile, error: OSError) -> BadFileError:
    """Make the error for a file that can't be opened or read."""
    return BadFileError(f"{file.path}: {error.strerror or error}.")
