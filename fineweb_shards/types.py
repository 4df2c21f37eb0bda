"""Define the values that pass between the stages of a run. They hold data only; the stages do the work.

Batch ──► TextChunk ──► EncodedBlock ──► TokenBlock ──► Section ──► ShardSlice ──► Placement ──► ShardRecord
source    worker reads  worker encodes   stitcher       mix         packer         output        manifest

The tokens themselves stay with the worker that made them (`HeldTokens`) until it writes them to their placements.
Values sent between processes have no slots, which would make pickling slow.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.texts import Texts, TokenLists

Tokens = NDArray[np.integer[Any]]  # ids; their width depends on the vocabulary or the file
Positions = NDArray[np.int64]  # positions in an array of tokens, ascending
Ranges = NDArray[np.int64]  # rows (begin, end) of positions in an array of tokens, ascending
Piles = NDArray[np.int16]  # numbers of a shuffle's piles; NumPy sorts such narrow integers five times as fast
Dtype = np.dtype[np.integer[Any]]
Split = Literal["val", "train"]
SPLITS: tuple[Split, Split] = ("val", "train")


@dataclass(frozen=True)
class Cursor:
    """A place in one part of the input: start a batch at (file, position) and drop `skip_tokens` tokens.

    `file` counts through all epochs of the part. `position` is a row group number in parquet and a byte offset (after
    decompression) elsewhere. It is independent of the batch size and the number of workers. `starts_mid_document`: the
    position is a safe cut inside a long document, so no EOT precedes it.
    """

    file: int
    position: int
    skip_tokens: int = 0
    starts_mid_document: bool = False

    def after(self, tokens: int) -> Cursor:
        """Return the place `tokens` tokens later."""
        return Cursor(self.file, self.position, self.skip_tokens + tokens, self.starts_mid_document)


Cursors = tuple[Cursor, ...]  # a place in the token stream: one cursor for each part of the input, in order


@dataclass(frozen=True)
class Counts:
    """Counts of the documents of a block that its tokens do not show; `+` adds two of them."""

    text_bytes: int = 0  # without separators or the JSON around the texts; 0 if the input is tokens
    skipped_documents: int = 0  # null text
    replaced_characters: int = 0  # invalid UTF-8 that became U+FFFD
    bad_parts: int = 0  # damaged files, row groups or lines left out by --on-bad-file skip
    token_count_mismatches: int = 0  # documents whose token_count in the source differs
    quarantined_documents: int = 0  # left out because they crash every worker that encodes them
    filtered_documents: int = 0  # left out by --where
    unknown_documents: int = 0  # left out because a value that --where needs is missing
    short_documents: int = 0  # left out by --min-tokens
    long_documents: int = 0  # left out by --max-document-tokens
    unsampled_documents: int = 0  # left out by --sample

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, vars(self).values(), vars(other).values()))


class Payload(Protocol):
    """The bytes of a batch, in this process or in shared memory."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class Batch:
    """A unit of work: the place of some documents or, in `payload`, their bytes or their places in a pile."""

    file: int
    position: int
    end: int
    size_bytes: int  # of text, possibly estimated; bounds the text in flight
    starts_mid_document: bool = False  # begins inside a document: no EOT in front
    ends_mid_document: bool = False  # the next batch begins inside a document
    starts_at_seam: bool = False  # begins at a cut that may have torn a token: see tokenizers/cuts.py
    ends_at_seam: bool = False  # the next batch begins at such a cut
    rows: tuple[int, int] | None = None  # in parquet: only these rows of a large row group
    separator: str = ""  # in text: the detected document separator, if none was given
    columns: tuple[str, ...] = ()  # in CSV: the column names, which only the file's first line has
    payload: Payload | None = None
    is_kept: bool | None = None  # in text: whether --sample keeps the last document, if only a part of it is here
    broken_off: bool = False  # a damaged stream ends here: the last document is incomplete
    problem: str | None = None  # why this range is left out or, if the range is empty, the rest of the file
    # The temporary address of a file on the hub. It contains a signature, which must not get into a log.
    address: str | None = field(default=None, repr=False)
    # A batch for each of several small files that are read and encoded together. Except for the size, all other fields
    # are those of the first one.
    members: tuple[Batch, ...] = ()
    part: int = 0  # of the input, to which the file belongs


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Documents that a worker reads together and encodes in one call; with --tokens-column they are already tokens, and
    are only joined.

    `start` is None where reading can't begin: after a seam, or inside a row group; likewise `end`. The stitcher
    expresses such a place as a number of tokens after the last cursor.
    """

    documents: Texts | TokenLists
    start: Cursor | None
    end: Cursor | None
    starts_mid_document: bool = False  # the first "document" is the rest of one that began earlier
    ends_mid_document: bool = False  # the last document continues in the next chunk
    starts_at_seam: bool = False
    ends_at_seam: bool = False
    counts: Counts = Counts()
    problems: tuple[str, ...] = ()  # sentences for the log
    origins: tuple[Origin, ...] = ()

    @property
    def texts(self) -> Texts:
        """The documents of a chunk that has to be encoded."""
        assert isinstance(self.documents, Texts), "its documents are already tokens"
        return self.documents


@dataclass(frozen=True, slots=True)
class Origin:
    """Where `count` documents of a chunk, starting with document `first`, come from, as far as known. `tokens` is
    compared with the encoder's counts; the rest only names documents in messages."""

    first: int
    count: int
    rows: NDArray[np.int64] | None = None  # in their file
    ids: Sequence[Any] | None = None
    tokens: NDArray[np.int64] | None = None  # the source's token_count; -1: none


def find_origin(chunk: TextChunk, document: int) -> tuple[int | None, str | None]:
    """Return the row of a document in its file, and its id; None if the source has none."""
    row: int | None = None
    name: Any = None
    for origin in chunk.origins:
        place = document - origin.first
        if 0 <= place < origin.count:
            row = None if origin.rows is None else int(origin.rows[place])
            name = None if origin.ids is None else origin.ids[place]
            name = name.as_py() if hasattr(name, "as_py") else name  # from Arrow or from JSON
    return row, None if name is None else str(name)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A document, or one piece of a long document, that was left out, and why."""

    file: int
    position: int  # of its batch
    document: int  # its number in that batch's chunk, from 0
    row: int | None  # in the file, if the file has rows
    id: str | None
    text_bytes: int
    sha256: str  # of the text, for recognition by a later run
    begins: str  # the first characters of the text
    cause: str = ""
    piece_of_bytes: int = 0  # if a piece of a long document: the batch size it was cut with
    part: int = 0  # of the input, to which the file belongs


@dataclass(frozen=True)
class HeldTokens:
    """A reference to the tokens of a block that stay with the worker that made them."""

    batch: int  # its number in listing order
    block: int  # its number in the batch
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True)
class EncodedBlock:
    """The tokens of one chunk, with EOTs. The worker keeps them unless the block has a seam at an end."""

    start: Cursor | None
    end: Cursor | None
    tokens: Tokens | HeldTokens
    eots: Positions  # of the EOTs in `tokens`, recorded by the encoder so that no later stage has to search
    starts_at_seam: bool = False
    ends_at_seam: bool = False
    ends_mid_document: bool = False  # the last document continues in the next block
    counts: Counts = Counts()
    problems: tuple[str, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    kept: Ranges | None = None  # the tokens to keep, by --min-tokens and --max-document-tokens; None: all
    part: int = 0  # of the input
    ends_part: bool = False  # it has no tokens, and the part has no more blocks

    @property
    def array(self) -> Tokens:
        """The tokens of a block that contains them: in the worker, and at seams."""
        assert not isinstance(self.tokens, HeldTokens), "its tokens stay with the worker that made them"
        return self.tokens


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens with their exact place in their part, made by the stitcher from encoded blocks."""

    start: Cursor
    end: Cursor
    tokens: Tokens | HeldTokens
    eots: Positions
    counts: Counts = Counts()
    kept: Ranges | None = None  # the tokens to keep; None: all
    part: int = 0  # of the input
    ends_mid_document: bool = False
    ends_part: bool = False


@dataclass(frozen=True)
class Taken:
    """How much a mix has taken of a part, EOTs included."""

    tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """The tokens of a section to append to a file, and the place in the stream after them.

    At a `checkpoint` the slices so far, of both splits, contain everything before `end`.
    """

    ranges: Ranges  # positions in the tokens of their block
    holders: Positions  # for each range, the number of its block in the section
    tokens: int  # number of tokens in the ranges
    documents: int  # number of EOTs in the ranges
    counts: Counts
    end: Cursors
    taken: tuple[Taken, ...] = ()  # up to `end`, in a mix
    split: Split = "train"
    checkpoint: bool = False  # record the progress in the manifest
    fills_shard: bool = False  # the last slice of its file


@dataclass(frozen=True)
class Placement:
    """Where tokens of a block belong: each range at an offset of a file, or of a pile in a folder."""

    path: str
    offsets: Positions  # for each range, in bytes; ascending within a file
    ranges: Ranges
    piles: Piles | None = None  # for each range the number of its pile, if `path` is the folder of the piles

    @property
    def begin(self) -> int:
        """The first offset."""
        return int(self.offsets[0])


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A durable segment of tokens, as `manifest.json` records it.

    Usually a segment is a whole shard. A file that grows over several checkpoints has several records, each with the
    hash of its bytes, which start at `offset`.
    """

    name: str
    split: Split
    offset: int
    tokens: int
    documents: int
    bytes: int
    sha256: str
    end: Cursors
    counts: Counts
    taken: tuple[Taken, ...] = ()  # of each part of a mix, up to `end`
