"""Count tokens, lengths of documents and frequencies, and take the samples that the report shows of a folder.

A `TokenStatistics` describes a segment of a stream. The sum of two adjacent ones describes both segments together, even
if a document spans them, because each keeps the number of tokens before its first EOT and after its last. So shards can
be counted separately and then added.

The report counts a bounded sample: it is made once a minute, perhaps of shards in a bucket, and every token would cost
the parent 3 ns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.store import Store
from fineweb_shards.system.terminal import cut_at_word
from fineweb_shards.tokenizers.references import decode, load_token_bytes
from fineweb_shards.types import ShardRecord, Tokens
from fineweb_shards.vocabulary import Vocabulary

Counted = NDArray[np.int64]
BUCKETS = 48  # of the histogram of document lengths: 0, 1, 2 to 3, 4 to 7 … tokens
SAMPLE_TOKENS = 2**18  # of a shard
_SAMPLED_SHARDS = 32
_SEARCH_TOKENS = 2**18  # how far to search for the start of a document
_SHOWN_TOKENS = 250


@dataclass(frozen=True, slots=True, eq=False)
class TokenStatistics:
    """Statistics of a segment of tokens. The lengths of documents exclude the EOT."""

    vocabulary: Vocabulary
    tokens: int
    boundaries: int  # number of EOTs
    head_tokens: int  # before the first EOT; once `closed`, only those of a document that began earlier
    tail_tokens: int  # after the last EOT; once `closed`, 0
    lengths: Counted  # documents between two EOTs, by bucket; once `closed`, all that begin here
    longest: int  # of these documents
    frequencies: Counted  # of every token id; the last entry counts all invalid ids

    def __add__(self, other: TokenStatistics) -> TokenStatistics:
        lengths = self.lengths + other.lengths
        longest = max(self.longest, other.longest)
        if self.boundaries and other.boundaries:  # the document that spans them is now complete
            joined = self.tail_tokens + other.head_tokens
            lengths = lengths + _bucket_counts(np.array([joined]))
            longest = max(longest, joined)
        return TokenStatistics(
            self.vocabulary,
            self.tokens + other.tokens,
            self.boundaries + other.boundaries,
            self.head_tokens + (0 if self.boundaries else other.head_tokens),
            other.tail_tokens + (0 if other.boundaries else self.tail_tokens),
            lengths,
            longest,
            self.frequencies + other.frequencies,
        )

    def closed(self, *, eot_first: bool, starts_mid_document: bool = False) -> TokenStatistics:
        """Return the statistics including the first and last documents, if they begin in the segment.

        If EOT comes first, each EOT begins a document; tokens before the first EOT belong to an earlier one. If EOT
        comes last, the segment starts with a document unless `starts_mid_document`, and ends with one if there are
        tokens after the last EOT.
        """
        ends = []
        if not eot_first and not starts_mid_document and self.tokens:
            ends.append(self.head_tokens)
        if self.boundaries and (eot_first or self.tail_tokens):
            ends.append(self.tail_tokens)
        rest_tokens = self.head_tokens if eot_first or starts_mid_document else 0
        lengths = self.lengths + _bucket_counts(np.array(ends, np.int64))
        longest = max([self.longest, *ends])
        return replace(self, head_tokens=rest_tokens, tail_tokens=0, lengths=lengths, longest=longest)

    @property
    def documents(self) -> int:
        return int(self.lengths.sum())

    @property
    def mean_tokens(self) -> float:
        """If closed: the mean length, within the segment, of the documents that begin in it."""
        return (self.tokens - self.boundaries - self.head_tokens) / max(1, self.documents)

    @property
    def text_bytes(self) -> int:
        lengths = [len(token) for token in load_token_bytes(self.vocabulary)]
        return int(self.frequencies[: len(lengths)] @ np.array(lengths, np.int64))

    @property
    def outside(self) -> int:
        return int(self.frequencies[self.vocabulary.size])

    @property
    def bytes_per_token(self) -> float:
        """The mean number of text bytes per token, without EOTs and invalid ids."""
        return self.text_bytes / max(1, self.tokens - self.boundaries - self.outside)

    def most_frequent(self, count: int) -> list[tuple[int, int]]:
        """Return the `count` most frequent tokens, without EOT, each with its frequency."""
        frequencies = self.frequencies[: self.vocabulary.size].copy()
        frequencies[self.vocabulary.eot] = 0
        best = np.argsort(-frequencies, kind="stable")[:count]
        return [(int(token), int(frequencies[token])) for token in best if frequencies[token]]


def empty_statistics(vocabulary: Vocabulary) -> TokenStatistics:
    """Return the statistics of no tokens, to start a sum."""
    frequencies = np.zeros(vocabulary.size + 1, np.int64)
    return TokenStatistics(vocabulary, 0, 0, 0, 0, np.zeros(BUCKETS, np.int64), 0, frequencies)


def count_tokens(tokens: Tokens, vocabulary: Vocabulary) -> TokenStatistics:
    places = vocabulary.find_eots(tokens)
    lengths = np.diff(places) - 1
    outside = np.int64(vocabulary.size)  # all invalid ids count as this one
    return TokenStatistics(
        vocabulary,
        len(tokens),
        len(places),
        int(places[0]) if len(places) else len(tokens),
        len(tokens) - int(places[-1]) - 1 if len(places) else len(tokens),
        _bucket_counts(lengths),
        int(lengths.max()) if len(lengths) else 0,
        np.bincount(np.minimum(tokens, outside), minlength=vocabulary.size + 1),
    )


def count_blocks(blocks: Iterable[Tokens], vocabulary: Vocabulary) -> TokenStatistics:
    return sum((count_tokens(block, vocabulary) for block in blocks), empty_statistics(vocabulary))


def bucket_range(bucket: int) -> tuple[int, int]:
    """Return the shortest and the longest length of a bucket."""
    return (0, 0) if bucket == 0 else (2 ** (bucket - 1), 2**bucket - 1)


def _bucket_counts(lengths: Counted) -> Counted:
    # By the number of binary digits; a logarithm would round.
    buckets = np.searchsorted(2 ** np.arange(BUCKETS - 1, dtype=np.int64), lengths, side="right")
    return np.bincount(buckets, minlength=BUCKETS)


def read_tokens(store: Store, shard_format: ShardFormat, record: ShardRecord, begin: int, most: int) -> Tokens:
    """Read at most `most` tokens of a record, not checking hashes; DamageError for a missing or short file."""
    count = max(0, min(most, record.tokens - begin))
    first = max(record.offset, shard_format.header_bytes)
    start = first + shard_format.size_bytes(begin)
    try:
        found = store.find(record.name)
        if found is None:
            raise DamageError(f"{record.name}: missing.")
        if found.size_bytes < first + shard_format.size_bytes(record.tokens):
            raise DamageError(f"{record.name}: its length differs from the manifest.")
        data = store.read_range(found, start, start + shard_format.size_bytes(count))
    except OSError as error:
        raise DamageError(f"{record.name}: {error.strerror or error}.") from error
    return shard_format.from_bytes(data)


def count_sample(
    store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], *, in_order: bool
) -> tuple[TokenStatistics, bool]:
    """Count the beginnings of shards all over a folder; return also whether those are all of its tokens. `in_order`:
    documents may span consecutive records."""
    step = max(1, -(-len(records) // _SAMPLED_SHARDS))
    total = empty_statistics(shard_format.vocabulary)
    whole = True
    for record in records[::step]:
        counted = count_tokens(read_tokens(store, shard_format, record, 0, SAMPLE_TOKENS), shard_format.vocabulary)
        whole = whole and step == 1 and record.tokens <= SAMPLE_TOKENS
        if whole and in_order:
            total += counted
            continue
        # Tokens between the two are left out, and so are documents that span them.
        total = replace(
            total + counted,
            head_tokens=total.head_tokens,
            tail_tokens=total.tail_tokens,
            lengths=total.lengths + counted.lengths,
            longest=max(total.longest, counted.longest),
        )
    return total, whole


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a document, and its place in a shard."""

    shard: str
    token: int  # the position in the shard where the document begins
    text: str
    cut: bool  # whether the document is longer than `text`


def take_samples(store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], count: int) -> list[Sample]:
    """Return the documents that begin soon after `count` places, spread evenly over the shards."""
    shard_ends = list(accumulate(record.tokens for record in records))
    vocabulary = shard_format.vocabulary
    samples: list[Sample] = []
    for place in (shard_ends[-1] * number // count for number in range(count)):
        number = bisect_right(shard_ends, place)
        record = records[number]
        begin = place - (shard_ends[number] - record.tokens)
        tokens = read_tokens(store, shard_format, record, begin, _SEARCH_TOKENS + _SHOWN_TOKENS)
        eots = vocabulary.find_eots(tokens[:_SEARCH_TOKENS])
        if begin == 0 and not shard_format.layout.eot_first:
            start = 0
        elif len(eots) and eots[0] + 1 < len(tokens):
            start = int(eots[0]) + 1
        else:
            continue  # no document begins soon
        shown = tokens[start : start + _SHOWN_TOKENS]
        ends = vocabulary.find_eots(shown)
        text = decode(shown[: ends[0]] if len(ends) else shown, vocabulary).decode("utf-8", "replace")
        # Unless this is the last shard, the document may continue in the next one.
        is_longer = begin + start + _SHOWN_TOKENS < record.tokens or record is not records[-1]
        cut = not len(ends) and is_longer
        sample = Sample(record.name, begin + start, cut_at_word(text) if cut else text, cut)
        if sample not in samples:
            samples.append(sample)
    return samples


def spell(token: int, vocabulary: Vocabulary) -> str:
    """Return a token's text with visible signs for white space, and numbers for bytes that are not text."""
    text = load_token_bytes(vocabulary)[token].decode("utf-8", "backslashreplace")
    signs = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(char) or (char if char.isprintable() else f"U+{ord(char):04X}") for char in text)
