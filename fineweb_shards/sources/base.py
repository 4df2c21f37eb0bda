"""What a source is: files in an order, cut into batches here and read inside the workers.

A new kind of file is a `Format` with two methods: `batches` runs once, in the parent, and should read
next to nothing; `chunks` runs in the workers and does the reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fineweb_shards.errors import BadFileError
from fineweb_shards.events import Observer
from fineweb_shards.system.retry import Retrier
from fineweb_shards.types import Batch, Counts, Cursor, TextChunk
from fineweb_shards.vocabulary import GPT2, Vocabulary

STANDARD_INPUT = "-"
_EXPECTED_FILES = 3  # the current one and two ahead


@dataclass(frozen=True, slots=True)
class HubRef:
    """A dataset on the hub at one commit, and how to get at it."""

    dataset: str
    name: str
    hub_split: str
    commit: str
    max_outage_seconds: int
    download_folder: str
    keep_downloads: bool


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How documents are found in files."""

    text_column: str
    separator: str
    batch_bytes: int
    skip_bad: bool
    hub: HubRef | None = None
    vocabulary: Vocabulary = GPT2  # decides where long documents may be cut, and what `token_count` counts


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input, and what tells whether it is still the same one."""

    index: int
    path: str  # or STANDARD_INPUT
    name: str  # for people and the manifest: the path below the input it was found by
    format: str  # a key of formats.FORMATS
    compression: str | None  # "gzip", "zstd" or None
    size_bytes: int
    mtime_ns: int
    content_hash: str  # of samples of a local file; the hub's own hash (ETag) of a remote one
    problem: str | None = None  # why nothing of it can be read: a broken link, a folder without permission
    is_pipe: bool = False  # standard input or a named pipe: can be read once, front to back

    @property
    def by_value(self) -> bool:
        """Whether it can only be read front to back, so that batches carry their bytes."""
        return self.is_pipe or self.compression is not None or self.format == "hub-rows"


class Format(ABC):
    """One way of keeping documents in a file. Lives in the parent and, pickled, in every worker."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        self.settings = settings
        self.retrier = Retrier(settings.hub.max_outage_seconds if settings.hub else 0, observer)

    def __reduce__(self) -> tuple[type[Format], tuple[ReadSettings]]:
        return type(self), (self.settings,)  # open files and connections stay in their process

    @abstractmethod
    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        """References to the file's documents from `position` on, in order."""

    @abstractmethod
    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """The documents of a batch."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files that were kept open for the next batch."""

    def expect(self, files: Sequence[InputFile]) -> None:
        """In the parent: these files come next."""

    def release(self, files: Sequence[InputFile]) -> None:
        """In the parent: these files will never be read again."""

    def share_before(self, file: InputFile, position: int) -> float | None:
        """In the parent: how much of the file lies before a position, from 0 to 1; None if nobody knows."""
        return None

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        """In a worker, in a thread of its own: this batch comes next."""


@dataclass(frozen=True)
class Source:
    """The files of a run, and the formats that read them."""

    files: tuple[InputFile, ...]
    formats: dict[str, Format] = field(repr=False)
    settings: ReadSettings

    def batches(self, start: Cursor) -> Iterator[Batch]:
        """All batches from the cursor's place on."""
        for file in self.files[start.file :]:
            first = file.index == start.file
            position, starts_mid_document = (
                (start.position, start.starts_mid_document) if first else (0, False)
            )
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
        """The documents of a batch, read here and now."""
        if batch.problem is not None:
            start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
            if start == end:  # the rest of the file, however much that is
                end = Cursor(batch.file + 1, 0)
            counts = Counts(bad_parts=1)
            return iter([TextChunk([], start, end, counts=counts, problems=(batch.problem,))])
        file = self.files[batch.file]
        return self.formats[file.format].chunks(file, batch)

    def prefetch(self, batch: Batch) -> None:
        """Have the batch's bytes ready when its turn comes, where that takes time."""
        if batch.problem is None:
            file = self.files[batch.file]
            self.formats[file.format].prefetch(file, batch)

    def reopened(self, observer: Observer | None = None) -> Source:
        """The same files, with nothing of them open yet; `observer` is told what the old one was told."""
        formats = {
            name: type(one)(one.settings, observer or one.retrier.observer)
            for name, one in self.formats.items()
        }
        return Source(self.files, formats, self.settings)

    def share_before(self, place: Cursor) -> float | None:
        """How much of the input, in bytes of its files, lies before a place; None if nobody knows."""
        if place.file >= len(self.files):
            return 1.0
        file = self.files[place.file]
        share = self.formats[file.format].share_before(file, place.position)
        if share is None or not self.size_bytes:
            return None
        before = sum(earlier.size_bytes for earlier in self.files[: place.file])
        return (before + share * file.size_bytes) / self.size_bytes

    def release_before(self, index: int) -> None:
        """Everything from the files before `index` is in finished shards."""
        for format_ in self.formats.values():
            format_.release(self.files[:index])

    def close(self) -> None:
        for format_ in self.formats.values():
            format_.close()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def decode_text(data: bytes) -> tuple[str, int]:
    """The text, and how many characters of it stand for invalid UTF-8."""
    try:
        return data.decode("utf-8"), 0
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())


def utf8_bytes(text: str) -> int:
    """How long a text is as UTF-8; a lone surrogate counts as what it is replaced by. Quick for ASCII."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def read_error(file: InputFile, error: OSError) -> BadFileError:
    """A file that can't be opened or read at all."""
    return BadFileError(f"{file.path}: {error.strerror or error}.")
