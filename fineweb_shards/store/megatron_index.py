"""Write and check Megatron's `.idx`, which lists the length and the start of every document of a `.bin`.

It is a pure function of the tokens, made by one pass over the `.bin` in constant memory. Tokens after the
last EOD (in a stream cut by --max-tokens) count as a document, too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.megatron import DTYPE_CODES
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.system.durable import WORK_FOLDER, output_error, publish

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
_HEADER = struct.Struct("<9sQBQQ")
_READ_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of the index, for a given offset."""

    offset: int
    data: bytes


def index_path(path: Path) -> Path:
    """Return the path of the index of a `.bin`."""
    return path.with_suffix(".idx")


def with_indices(layout: Layout, names: set[str]) -> set[str]:
    """Return the names and, if the layout has indices, the names of their indices."""
    return names | {index_path(Path(name)).name for name in names} if layout.has_index else names


def index_bytes(path: Path, documents: int, shard_format: ShardFormat) -> int:
    """Return the length of the index of a `.bin` that has `documents` EODs."""
    with open(path, "rb") as tokens:
        sequences = _count_sequences(tokens, documents, shard_format)
    return _HEADER.size + 4 * sequences + 8 * sequences + 8 * (sequences + 1)


def write_index(path: Path, documents: int, shard_format: ShardFormat) -> None:
    """Write the index of a finished `.bin` that has `documents` EODs."""
    final = index_path(path)
    temporary = path.parent / WORK_FOLDER / "index.tmp"
    try:
        with open(path, "rb") as tokens, open(temporary, "wb") as file:
            for part in _parts(tokens, documents, shard_format):
                file.seek(part.offset)
                file.write(part.data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, final)
    except OSError as error:
        raise output_error(final, error) from error


def check_index(path: Path, documents: int, shard_format: ShardFormat) -> str | None:
    """Return what is wrong with the index of a `.bin`, or None."""
    final = index_path(path)
    try:
        with open(path, "rb") as tokens, open(final, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            end = 0
            for part in _parts(tokens, documents, shard_format):
                file.seek(part.offset)
                if file.read(len(part.data)) != part.data:
                    return f"{final.name}: does not fit {path.name}"
                end = max(end, part.offset + len(part.data))
    except FileNotFoundError:
        return f"{final.name}: missing"
    except OSError as error:
        return f"{final.name}: {error.strerror}"
    return None if size == end else f"{final.name}: {size:,} bytes long, should be {end:,}"


def _parts(tokens: BinaryIO, documents: int, shard_format: ShardFormat) -> Iterator[_Part]:
    """Yield the index: a header, then lengths, starts and numbers for each block of the `.bin`."""
    sequences = _count_sequences(tokens, documents, shard_format)
    code = DTYPE_CODES[shard_format.dtype.str]
    yield _Part(0, _HEADER.pack(MAGIC, VERSION, code, sequences, sequences + 1))
    lengths_at = _HEADER.size
    starts_at = lengths_at + 4 * sequences
    numbers_at = starts_at + 8 * sequences
    done, start = 0, 0  # documents, and the token at which the next one begins
    for ends in _document_ends(tokens, shard_format):
        starts = np.concatenate([[start], ends[:-1]])
        yield _Part(lengths_at + 4 * done, (ends - starts).astype("<i4").tobytes())
        offsets = starts * shard_format.dtype.itemsize
        yield _Part(starts_at + 8 * done, offsets.astype("<i8").tobytes())
        yield _Part(numbers_at + 8 * done, np.arange(done, done + len(ends), dtype="<i8").tobytes())
        done, start = done + len(ends), int(ends[-1])
    yield _Part(numbers_at + 8 * done, np.array([done], "<i8").tobytes())


def _count_sequences(tokens: BinaryIO, documents: int, shard_format: ShardFormat) -> int:
    """Return the number of documents; tokens after the last EOD are one more."""
    total, _ = shard_format.tokens_in(os.fstat(tokens.fileno()).st_size)
    if not total:
        return documents
    tokens.seek(shard_format.offset_bytes(total - 1))
    (last,) = shard_format.from_bytes(tokens.read(shard_format.dtype.itemsize)).tolist()
    return documents + int(last != shard_format.vocabulary.eot)


def _document_ends(tokens: BinaryIO, shard_format: ShardFormat) -> Iterator[NDArray[np.int64]]:
    """Yield the positions at which documents end, a block at a time; never an empty array."""
    tokens.seek(0)
    position = last = 0
    while data := tokens.read(_READ_BYTES):
        block = shard_format.from_bytes(data)
        ends = shard_format.vocabulary.find_eots(block) + (position + 1)
        position += len(block)
        if len(ends):
            last = int(ends[-1])
            yield ends
    if last < position:
        yield np.array([position], np.int64)
