"""The values that pass between stages.

Batch ──► TextChunk ──► EncodedBlock ──► TokenBlock ──► ShardSlice ──► ShardRecord
source    worker reads  worker encodes   stitcher       packer         writer, manifest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer[Any]]  # as wide as the vocabulary, or the file they come from, has them
Places = NDArray[np.int64]  # in an array of tokens, ascending
Dtype = np.dtype[np.integer[Any]]
Split = Literal["val", "train"]
SPLITS: tuple[Split, Split] = ("val", "train")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the token stream: start a batch at (file, position) and drop `skip_tokens` tokens.

    `position` is a row group number in parquet and a byte offset (after decompression) elsewhere. It
    depends neither on the batch size nor on the number of workers. `starts_mid_document` says that the
    position is a safe cut inside a long document, so that no EOT stands in front of what follows.
    """

    file: int
    position: int
    skip_tokens: int = 0
    starts_mid_document: bool = False

    def after(self, tokens: int) -> Cursor:
        """The place `tokens` further on."""
        return Cursor(self.file, self.position, self.skip_tokens + tokens, self.starts_mid_document)


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened to the documents of a block, beyond becoming tokens."""

    text_bytes: int = 0  # of the documents, as UTF-8: neither separators nor the JSON around them
    skipped_documents: int = 0  # null text
    replaced_characters: int = 0  # invalid UTF-8 that became U+FFFD
    bad_parts: int = 0  # damaged files, row groups or lines left out by --on-bad-file skip
    token_count_mismatches: int = 0  # documents whose token_count in the source is not ours
    quarantined_documents: int = 0  # left out because they end whoever encodes them

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.text_bytes + other.text_bytes,
            self.skipped_documents + other.skipped_documents,
            self.replaced_characters + other.replaced_characters,
            self.bad_parts + other.bad_parts,
            self.token_count_mismatches + other.token_count_mismatches,
            self.quarantined_documents + other.quarantined_documents,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of work: where a worker finds some documents, or (`payload`) their bytes themselves."""

    file: int
    position: int
    end: int
    size_bytes: int  # of text, as well as it is known: what the window in flight is measured in
    starts_mid_document: bool = False  # begins inside a document: no EOT in front
    ends_mid_document: bool = False  # the next batch begins inside a document
    seam: bool = False  # begins at a cut that may have torn a token: see tokenizers/seams.py
    rows: tuple[int, int] | None = None  # in parquet: only these rows of a large row group
    separator: str = ""  # in text: what stands between documents, where it was found by looking
    payload: bytes | None = None
    broken_off: bool = False  # a damaged stream ends here: the last document is not whole
    problem: str | None = None  # left out: this range or, where it is empty, the rest of the file


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Documents read together by a worker.

    `start` is None where reading can't begin: behind a seam, or in the middle of a row group.
    `end` likewise. Such a place is counted in tokens from the last one that has a cursor.
    """

    documents: list[str]
    start: Cursor | None
    end: Cursor | None
    starts_mid_document: bool = False  # the first "document" is the rest of one
    ends_mid_document: bool = False  # the last document goes on in the next chunk
    seam: bool = False
    counts: Counts = Counts()
    problems: tuple[str, ...] = ()  # what a person should know of, for the log
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where some documents of a chunk, beginning with document `first`, come from, as far as it is known.

    Looked at only where something is wrong with one of them, apart from `tokens`.
    """

    first: int
    count: int
    rows: NDArray[np.int64] | None = None  # in their file
    ids: Sequence[Any] | None = None
    tokens: NDArray[np.int64] | None = None  # how many the source says they have; -1: it does not say


def id_of(chunk: TextChunk, document: int) -> str | None:
    """What the source calls a document."""
    for origin in chunk.origins:
        if origin.ids is not None and 0 <= document - origin.first < origin.count:
            name = origin.ids[document - origin.first]
            name = name.as_py() if hasattr(name, "as_py") else name  # from Arrow or from JSON
            return None if name is None else str(name)
    return None


def row_of(chunk: TextChunk, document: int) -> int | None:
    """A document's row in its file."""
    for origin in chunk.origins:
        if origin.rows is not None and 0 <= document - origin.first < origin.count:
            return int(origin.rows[document - origin.first])
    return None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A document that was left out, and why. In a long document it may be one piece of it."""

    file: int
    position: int  # of the batch it was read with
    document: int  # its number in that batch's chunk, from 0
    row: int | None  # in the file, where there are rows
    id: str | None
    text_bytes: int
    sha256: str  # of the text: how it is known again
    begins: str
    cause: str = ""
    piece_of_bytes: int = 0  # a piece of a long document: the batch size it was cut with


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """The tokens of one chunk, EOT included, as a worker sends them."""

    start: Cursor | None
    end: Cursor | None
    tokens: Tokens
    eots: Places  # where in `tokens` an EOT is: whoever puts it there knows, and nobody has to search
    seam: bool = False
    counts: Counts = Counts()
    problems: tuple[str, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.tokens.nbytes + self.eots.nbytes


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens in their place in the stream: what the stitcher makes of encoded blocks."""

    start: Cursor
    end: Cursor
    tokens: Tokens
    eots: Places
    counts: Counts = Counts()


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """Tokens for a file being written, and the place in the stream behind them.

    At a `checkpoint` everything up to `end` is in slices already handed out, of either split.
    """

    tokens: Tokens
    documents: int  # EOTs among them
    counts: Counts
    end: Cursor
    split: Split = "train"
    checkpoint: bool = False  # enter what is written in the manifest
    fills_shard: bool = False  # nothing more comes into this file


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A segment of tokens that is safely on the disk, as `manifest.json` has it.

    Usually it is a whole shard. A file that grows over several checkpoints has several records, each
    with the hash of its own bytes, which begin at `offset`.
    """

    name: str
    split: Split
    offset: int
    tokens: int
    documents: int
    bytes: int
    sha256: str
    end: Cursor
    counts: Counts
