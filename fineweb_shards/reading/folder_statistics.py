"""What the report shows of a folder's documents: statistics, and a few samples for a person to look at.

Counting every token would cost the parent 3 ns each, so only the beginning of a large shard is counted, a
hundredth of 100M tokens. The result is kept in `.fineweb-shards/statistics.bin`, which covers the first
shards of the manifest; shards that it lacks, or that have changed, are counted when a report is made. It has
a checksum and compressed numbers, whose length follows from the vocabulary: everything in it is checked, and
a damaged file is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.reading.token_statistics import BUCKETS, TokenStatistics, count_blocks, empty_statistics
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import WORK_FOLDER, write_quickly
from fineweb_shards.system.own_files import SMALL_BYTES, read_file
from fineweb_shards.system.terminal import cut_at_word
from fineweb_shards.tokenizers.decoder import decode
from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.types import ShardRecord, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary


def read_tokens(
    store: Store, shard_format: ShardFormat, record: ShardRecord, begin: int, most: int
) -> Tokens:
    """Read at most `most` tokens of a record; DamageError if its file is missing or too short. Hashes are
    not checked."""
    count = max(0, min(most, record.tokens - begin))
    first = max(record.offset, shard_format.header_bytes)
    try:
        found = store.find(record.name)
        if found is None:
            raise DamageError(f"{record.name}: missing.")
        if found.size_bytes < first + shard_format.size_bytes(record.tokens):
            raise DamageError(f"{record.name}: its length is not what the manifest says.")
        start = first + shard_format.size_bytes(begin)
        data = store.read_range(found, start, start + shard_format.size_bytes(count))
    except OSError as error:
        raise DamageError(f"{record.name}: {error.strerror or error}.") from error
    return shard_format.from_bytes(data)


FILE_NAME = "statistics.bin"
SAMPLE_TOKENS = 2**20  # more do not fit the processor's caches and take ten times as long
_FORMAT = 2
_NUMBERS = 8
_DIGEST_BYTES = 32
_LARGEST_NUMBER = 2**50  # sums of such numbers fit into 64 bits


@dataclass(frozen=True, slots=True)
class FolderStatistics:
    """Statistics of the first `shards` records of a folder; if `whole`, of all their tokens."""

    statistics: TokenStatistics = field(default_factory=lambda: empty_statistics(GPT2))
    shards: int = 0
    whole: bool = True
    digest: str = ""  # of the hashes of these records, to notice a shard that has changed

    def add(
        self, store: Store, shard_format: ShardFormat, record: ShardRecord, *, in_order: bool
    ) -> FolderStatistics:
        """Return the statistics with the next record of the manifest added.

        `in_order` says that the records follow one another in the stream, so that documents may span them.
        """
        tokens = read_tokens(store, shard_format, record, 0, SAMPLE_TOKENS)
        counted = count_blocks([tokens], shard_format.vocabulary)
        whole = self.whole and record.tokens <= SAMPLE_TOKENS
        # A document that spans two records is only counted right if no tokens between them were left out.
        joined = whole and in_order
        both = self.statistics + counted if joined else _add_with_gap(self.statistics, counted)
        return FolderStatistics(both, self.shards + 1, whole, _next_digest(self.digest, record))

    def fits(self, records: Sequence[ShardRecord]) -> bool:
        """Return whether these statistics are those of the first of these records."""
        digest = ""
        for record in records[: self.shards]:
            digest = _next_digest(digest, record)
        return len(records) >= self.shards and digest == self.digest

    def save(self, folder: Path) -> None:
        """Replace the folder's file. It need not be durable: what is lost is counted again."""
        figures = self.statistics
        numbers = [
            _FORMAT, self.shards, self.whole, figures.tokens, figures.boundaries, figures.head_tokens,
            figures.tail_tokens, figures.longest,
        ]  # fmt: skip
        values = np.concatenate([np.array(numbers), figures.lengths, figures.frequencies])
        digest = bytes.fromhex(self.digest).ljust(_DIGEST_BYTES, b"\0")
        content = zlib.compress(digest + values.astype("<i8").tobytes(), 1)
        write_quickly(folder / WORK_FOLDER / FILE_NAME, hashlib.sha256(content).digest() + content)


def load_folder_statistics(folder: Path, vocabulary: Vocabulary) -> FolderStatistics:
    """Load the folder's statistics; return empty ones if there are none, or if they are damaged."""
    nothing = FolderStatistics(empty_statistics(vocabulary))
    size_bytes = _DIGEST_BYTES + 8 * (_NUMBERS + BUCKETS + len(nothing.statistics.frequencies))
    try:
        # Compressed it may be a little longer, but never by as much.
        data = read_file(folder / WORK_FOLDER / FILE_NAME, size_bytes + SMALL_BYTES)
        checksum, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != checksum:
            return nothing
        # One more byte than expected is enough to see that the length is wrong.
        values = zlib.decompressobj().decompress(content, size_bytes + 1)
    except (OSError, zlib.error):
        return nothing
    found = _parse_statistics(values, vocabulary) if len(values) == size_bytes else None
    return found or nothing


def _parse_statistics(values: bytes, vocabulary: Vocabulary) -> FolderStatistics | None:
    """Parse the uncompressed numbers; None if they are implausible or of another format."""
    figures = np.frombuffer(values, "<i8", offset=_DIGEST_BYTES).astype(np.int64)
    if int(figures.min()) < 0 or int(figures.max()) > _LARGEST_NUMBER or figures[0] != _FORMAT:
        return None
    shards, whole, tokens, boundaries, head, tail, longest = map(int, figures[1:_NUMBERS])
    lengths, frequencies = np.split(figures[_NUMBERS:], [BUCKETS])
    statistics = TokenStatistics(vocabulary, tokens, boundaries, head, tail, lengths, longest, frequencies)
    return FolderStatistics(statistics, shards, bool(whole), values[:_DIGEST_BYTES].hex() if shards else "")


def complete_folder_statistics(
    store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], *, in_order: bool
) -> FolderStatistics:
    """Load the folder's statistics, count the records that they lack, and save the result."""
    figures = load_folder_statistics(store.folder, shard_format.vocabulary)
    if not figures.fits(records):
        figures = FolderStatistics(empty_statistics(shard_format.vocabulary))
    missing = records[figures.shards :]
    for record in missing:
        figures = figures.add(store, shard_format, record, in_order=in_order)
    if missing:
        with contextlib.suppress(OSError):  # a full disk or a read-only folder: counted again next time
            figures.save(store.folder)
    return figures


def _add_with_gap(left: TokenStatistics, right: TokenStatistics) -> TokenStatistics:
    """Add the statistics of two segments that are not adjacent; documents at the gap are left out."""
    return replace(
        left,
        tokens=left.tokens + right.tokens,
        boundaries=left.boundaries + right.boundaries,
        lengths=left.lengths + right.lengths,
        longest=max(left.longest, right.longest),
        frequencies=left.frequencies + right.frequencies,
    )


def _next_digest(digest: str, record: ShardRecord) -> str:
    """Return the digest of all records so far, given the digest before this record."""
    return hashlib.sha256(f"{digest}{record.sha256}".encode()).hexdigest()


_SEARCH_TOKENS = 2**18  # how far to search for the beginning of a document
_SHOWN_TOKENS = 250


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a document, and its place in a shard."""

    shard: str
    token: int  # the position in the shard at which the document begins
    text: str
    cut: bool  # whether the document is longer than `text`


def take_samples(
    store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], count: int
) -> list[Sample]:
    """Return samples at `count` places spread evenly over the shards; always the same ones."""
    total = sum(record.tokens for record in records)
    places = [total * number // count for number in range(count)]
    samples: list[Sample] = []
    begin = 0
    for record in records:
        is_last = record is records[-1]
        for place in places:
            if begin <= place < begin + record.tokens:
                sample = _sample_at(store, shard_format, record, place - begin, is_last)
                samples += [sample] if sample is not None and sample not in samples else []
        begin += record.tokens
    return samples


def _sample_at(
    store: Store, shard_format: ShardFormat, record: ShardRecord, place: int, is_last: bool
) -> Sample | None:
    """Return the next document that begins after `place`, or else the last one that begins before it.

    Unless this is the last shard, the document may continue in the next one.
    """
    vocabulary = shard_format.vocabulary
    first = max(0, place - _SEARCH_TOKENS)
    tokens = read_tokens(store, shard_format, record, first, 2 * _SEARCH_TOKENS + 1 + _SHOWN_TOKENS)
    starts_here = place == 0 and not shard_format.layout.eot_first
    start = _find_start(vocabulary, tokens, place - first, starts_here=starts_here)
    if start is None:
        return None
    shown = tokens[start : start + _SHOWN_TOKENS]
    ends = vocabulary.find_eots(shown)
    text = decode(shown[: ends[0]] if len(ends) else shown, vocabulary).decode("utf-8", "replace")
    cut = not len(ends) and (first + start + _SHOWN_TOKENS < record.tokens or not is_last)
    return Sample(record.name, first + start, cut_at_word(text) if cut else text, cut)


def _find_start(vocabulary: Vocabulary, tokens: Tokens, place: int, *, starts_here: bool) -> int | None:
    """Return where among these tokens the document nearest to `place` begins; None if none is found."""
    if starts_here:
        return 0
    after = vocabulary.find_eots(tokens[place : place + _SEARCH_TOKENS])
    if len(after) and place + after[0] + 1 < len(tokens):
        return place + int(after[0]) + 1
    before = vocabulary.find_eots(tokens[:place])
    return int(before[-1]) + 1 if len(before) else None


def spell(token: int, vocabulary: Vocabulary) -> str:
    """Return a token's text with visible signs for white space, and numbers for bytes that are not text."""
    text = load_token_bytes(vocabulary).token_bytes[token].decode("utf-8", "backslashreplace")
    signs = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(char) or (char if char.isprintable() else f"U+{ord(char):04X}") for char in text)
