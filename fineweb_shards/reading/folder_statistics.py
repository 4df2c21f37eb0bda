"""`.fineweb-shards/statistics.bin`: figures about the documents of the finished shards, for the report.

Counting every token would cost a run 5 % of its speed, so of a large shard only its beginning is counted:
0.5 %. The file covers the first shards of the manifest; what it lacks, or no longer fits, is counted when a
report is made. A checksum, then numbers of known length (the vocabulary's ids decide it), compressed: nothing
in it has to be believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.reading.shard_tokens import map_tokens
from fineweb_shards.reading.token_statistics import BUCKETS, TokenStatistics, count_blocks, count_nothing
from fineweb_shards.system.durable import WORK_FOLDER, read_file, write_quickly
from fineweb_shards.types import ShardRecord, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary

FILE_NAME = "statistics.bin"
SAMPLE_TOKENS = 2**23
_FORMAT = 2
_NUMBERS = 8
_DIGEST_BYTES = 32
_LARGEST_FIGURE = 2**50  # sums of them still fit into 64 bits
_BLOCK_TOKENS = 2**20  # larger ones leave the processor's caches and cost ten times as much


@dataclass(frozen=True, slots=True)
class FolderStatistics:
    """Figures of the first `shards` shards of a folder; `whole`: of all their tokens."""

    statistics: TokenStatistics = field(default_factory=lambda: count_nothing(GPT2))
    shards: int = 0
    whole: bool = True
    digest: str = ""  # of what was counted: a shard that was made again differently is noticed

    def add(
        self, folder: Path, shard_format: ShardFormat, record: ShardRecord, *, in_order: bool
    ) -> FolderStatistics:
        """With the next record of the manifest. `in_order`: a document may run from one into the next."""
        tokens = map_tokens(folder, shard_format, record)
        counted = count_blocks(_blocks(tokens[:SAMPLE_TOKENS]), shard_format.vocabulary)
        whole = self.whole and len(tokens) <= SAMPLE_TOKENS
        # Only where nothing is missing between them does a document run from one into the next.
        joined = whole and in_order
        both = self.statistics + counted if joined else _add_apart(self.statistics, counted)
        return FolderStatistics(both, self.shards + 1, whole, _next_digest(self.digest, record))

    def fits(self, records: Sequence[ShardRecord]) -> bool:
        """Whether it covers the beginning of these shards."""
        digest = ""
        for record in records[: self.shards]:
            digest = _next_digest(digest, record)
        return len(records) >= self.shards and digest == self.digest

    def save(self, folder: Path) -> None:
        figures = self.statistics
        numbers = [
            _FORMAT, self.shards, self.whole, figures.tokens, figures.borders, figures.head_tokens,
            figures.tail_tokens, figures.longest,
        ]  # fmt: skip
        values = np.concatenate([np.array(numbers), figures.lengths, figures.frequencies])
        digest = bytes.fromhex(self.digest).ljust(_DIGEST_BYTES, b"\0")
        content = zlib.compress(digest + values.astype("<i8").tobytes(), 1)
        write_quickly(folder / WORK_FOLDER / FILE_NAME, hashlib.sha256(content).digest() + content)


def load_folder_statistics(folder: Path, vocabulary: Vocabulary) -> FolderStatistics:
    """The folder's, or an empty one where there is none that can be read."""
    nothing = FolderStatistics(count_nothing(vocabulary))
    size_bytes = _DIGEST_BYTES + 8 * (_NUMBERS + BUCKETS + len(nothing.statistics.frequencies))
    try:
        data = read_file(folder / WORK_FOLDER / FILE_NAME)
        checksum, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != checksum:
            return nothing
        # One byte more than there should be is enough to notice that it is something else.
        values = zlib.decompressobj().decompress(content, size_bytes + 1)
    except (OSError, zlib.error):
        return nothing
    found = _statistics_from(values, vocabulary) if len(values) == size_bytes else None
    return found or nothing


def _statistics_from(values: bytes, vocabulary: Vocabulary) -> FolderStatistics | None:
    figures = np.frombuffer(values, "<i8", offset=_DIGEST_BYTES).astype(np.int64)
    if int(figures.min()) < 0 or int(figures.max()) > _LARGEST_FIGURE or figures[0] != _FORMAT:
        return None
    shards, whole, tokens, borders, head, tail, longest = map(int, figures[1:_NUMBERS])
    lengths, frequencies = np.split(figures[_NUMBERS:], [BUCKETS])
    statistics = TokenStatistics(vocabulary, tokens, borders, head, tail, lengths, longest, frequencies)
    return FolderStatistics(statistics, shards, bool(whole), values[:_DIGEST_BYTES].hex() if shards else "")


def complete_folder_statistics(
    folder: Path, shard_format: ShardFormat, records: Sequence[ShardRecord], *, in_order: bool
) -> FolderStatistics:
    """The folder's figures, with the shards that are missing in them counted now, and kept."""
    figures = load_folder_statistics(folder, shard_format.vocabulary)
    if not figures.fits(records):
        figures = FolderStatistics(count_nothing(shard_format.vocabulary))
    missing = records[figures.shards :]
    for record in missing:
        figures = figures.add(folder, shard_format, record, in_order=in_order)
    if missing:
        with contextlib.suppress(OSError):  # a full disk, or somebody else's folder: counted again next time
            figures.save(folder)
    return figures


def _blocks(tokens: Tokens) -> Iterator[Tokens]:
    for start in range(0, len(tokens), _BLOCK_TOKENS):
        yield tokens[start : start + _BLOCK_TOKENS]


def _add_apart(left: TokenStatistics, right: TokenStatistics) -> TokenStatistics:
    """Of two segments with something between them. The documents at their ends are left out."""
    return replace(
        left,
        tokens=left.tokens + right.tokens,
        borders=left.borders + right.borders,
        lengths=left.lengths + right.lengths,
        longest=max(left.longest, right.longest),
        frequencies=left.frequencies + right.frequencies,
    )


def _next_digest(digest: str, record: ShardRecord) -> str:
    return hashlib.sha256(f"{digest}{record.sha256}".encode()).hexdigest()
