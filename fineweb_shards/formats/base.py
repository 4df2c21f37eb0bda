"""Define a format: the parent cuts its files into batches, and the workers read them.

A new format is a subclass of `Format` with three methods, and an entry in registry.py. `batches` runs once, in the
parent, and should read next to nothing; `chunks` runs in the workers and does the reading. Both read through `place`,
so that a format works with files anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Self

import numpy as np

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.columns import Template
from fineweb_shards.formats.random_sample import RandomSample
from fineweb_shards.formats.registry import FORMATS
from fineweb_shards.formats.where import Where
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import HubRef, InputFile, Place
from fineweb_shards.texts import Texts
from fineweb_shards.types import Batch, Dtype, TextChunk
from fineweb_shards.vocabulary import Vocabulary

_SMALL_BYTES = 2**20  # of a text over the network: listing its documents would read a good part of it


@dataclass(frozen=True, slots=True)
class PileSettings:
    count: int
    list_bytes: int
    dtype: Dtype
    eot_first: bool
    url: str = ""  # of the folder that has them in a bucket; else they are files


@dataclass(frozen=True, slots=True)
class ReadSettings:
    text_column: str
    separator: str
    batch_bytes: int
    skip_bad: bool
    vocabulary: Vocabulary  # decides whether FineWeb's `token_count` applies
    max_outage_seconds: int = 0  # of the network, if files are remote
    hub: HubRef | None = None  # the dataset that remote files belong to
    where: Where | None = None  # which documents to read; None: all
    sample: RandomSample | None = None  # of the selected documents; None: all
    tokens_column: str | None = None  # holds the documents as lists of ids; None: text_column holds them
    template: Template | None = None  # makes a document of several columns; None: text_column holds it
    largest_page_bytes: int = 2**40  # of a parquet file, unpacked: the limit that memory allows
    piles: PileSettings | None = None  # for reading the piles of a shuffle

    @property
    def columns(self) -> tuple[str, ...]:
        if self.template is not None:
            return self.template.columns
        return (self.text_column if self.tokens_column is None else self.tokens_column,)

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns of the documents, then those of --where, each once."""
        return tuple(dict.fromkeys((*self.columns, *(self.where.columns if self.where else ()))))

    def column_hint(self, column: str = "column") -> str:
        """Return the next step if that column, or key, is missing or has another type."""
        if self.template is not None:
            return f"Name {column}s with text: --template."
        if self.tokens_column is None:
            return f"Name the {column} with the text: --text-column."
        return f"Name the {column} with the lists of ids: --tokens-column; for text it is --text-column."


class Format(ABC):
    """Reads one kind of file in one place. Exists in the parent and, by pickling, in every worker."""

    def __init__(self, settings: ReadSettings, place: Place | None = None) -> None:
        self.settings = settings
        self.place = place or LocalPlace()
        self.doubts = Counter[str]()  # by path: batches that looked wrong

    def __reduce__(self) -> tuple[type[Format], tuple[ReadSettings, Place]]:
        return type(self), (self.settings, self.place)  # without open files, which can't be pickled

    def reopened(self, place: Place) -> Self:
        """Return a copy with no file open, for files in `place`."""
        return type(self)(self.settings, place)

    @abstractmethod
    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        """Yield batches that refer to the file's documents from `position` on, in order."""

    def sample_batches(self, file: InputFile, position: int, limit_bytes: int) -> Iterator[Batch]:
        """Yield batches for reading about `limit_bytes`; over the network they are no larger than that."""
        return self.batches(file, position, False)

    @abstractmethod
    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        """Read the documents of a batch."""

    @abstractmethod
    def close(self) -> None:
        """Close files that were kept open for the next batch."""

    def is_small(self, file: InputFile) -> bool:
        """Return whether a file is a small text, which the parent fetches whole: to list its documents it would read a
        good part of it anyway."""
        is_text = FORMATS[file.format].is_text and file.compression is None
        return self.place.is_remote and is_text and file.size_bytes <= _SMALL_BYTES

    def by_value(self, file: InputFile) -> bool:
        """Return whether batches carry their bytes: of files that can only be read front to back, and of those over the
        network that must be read whole to list their batches, so that they are fetched only once."""
        is_stream = file.is_pipe or file.compression is not None
        fetched_whole = self.place.is_remote and not FORMATS[file.format].by_ranges
        return is_stream or fetched_whole or self.is_small(file)

    def leave_out(self, error: BadFileError) -> str:
        """Return the message about an omission; without `--on-bad-file skip`, raise the error."""
        if not self.settings.skip_bad:
            raise error
        return f"left out: {error.message}"

    def expect(self, files: Sequence[InputFile]) -> None:
        """Prepare files of this format and place that will be read next. Runs in the parent."""

    def share_before(self, file: InputFile, position: int) -> float | None:
        """Return the share of a file before a position, from 0 to 1; None if unknown. Runs in the parent."""
        return None

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        """Begin to fetch a batch that will be read soon. Runs in a worker, in the thread that receives orders."""

    def fetch_again(self, file: InputFile, batch: Batch) -> None:
        """Drop the fetched bytes of a batch, and fetch it again."""


def load_format(name: str) -> type[Format]:
    module, _, kind = FORMATS[name].reader.rpartition(".")
    found: type[Format] = getattr(import_module(f"{__package__}.{module}"), kind)
    return found


def decode_text(data: bytes) -> tuple[str, int]:
    """Decode UTF-8; return the text, and the number of characters that replace invalid bytes."""
    try:
        return data.decode("utf-8"), 0
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())


def decode_texts(pieces: Iterable[bytes]) -> tuple[Texts, int]:
    decoded = [decode_text(piece) for piece in pieces]
    return Texts.from_strings(text for text, _ in decoded), sum(replaced for _, replaced in decoded)


def is_utf8(data: bytes | memoryview) -> bool:
    """Return whether bytes are valid UTF-8, without a copy, unlike `decode`."""
    import pyarrow as pa  # here: it takes 28 MB, which inputs without text don't need

    boundaries = np.array([0, len(data)], np.int64)
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(boundaries), pa.py_buffer(data))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def first_line(error: Exception) -> str:
    """Return the message of a library's error, in one line without a full stop."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
