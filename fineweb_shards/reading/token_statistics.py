"""Count tokens: how long the documents are, which tokens are frequent, how many bytes a token has.

A `TokenStatistics` describes a segment of a stream. The sum of two adjacent ones describes both segments
together, even if a document spans them: each keeps how many tokens it has before its first EOT and after its
last. So shards can be counted separately, in any number of processes, and then be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import Vocabulary

Counted = NDArray[np.int64]
BUCKETS = 48  # of the histogram of document lengths: 0, 1, 2 to 3, 4 to 7 … tokens


@dataclass(frozen=True, slots=True, eq=False)
class TokenStatistics:
    """Statistics of a segment of tokens. Lengths of documents do not include the EOT."""

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
        """Return the statistics with the first and last document counted, if they begin in the segment.

        If EOT comes first, each EOT begins a document; tokens before the first EOT belong to a document that
        began earlier. If EOT comes last, the segment starts with a document unless `starts_mid_document`,
        and ends with one if there are tokens after the last EOT.
        """
        if eot_first:
            ends = [self.tail_tokens] if self.boundaries else []
        elif not self.boundaries:
            ends = [self.tokens] if self.tokens and not starts_mid_document else []
        else:
            ends = ([] if starts_mid_document else [self.head_tokens]) + (
                [self.tail_tokens] if self.tail_tokens else []
            )
        rest_tokens = self.head_tokens if eot_first or starts_mid_document else 0
        lengths = self.lengths + _bucket_counts(np.array(ends, np.int64))
        longest = max([self.longest, *ends])
        return replace(self, head_tokens=rest_tokens, tail_tokens=0, lengths=lengths, longest=longest)

    @property
    def documents(self) -> int:
        """The number of documents in the histogram."""
        return int(self.lengths.sum())

    @property
    def mean_tokens(self) -> float:
        """The mean length of the documents that begin in the segment, as far as they are in it, if closed."""
        return (self.tokens - self.boundaries - self.head_tokens) / max(1, self.documents)

    @property
    def text_bytes(self) -> int:
        """The number of bytes of the text of all tokens."""
        lengths = [len(token) for token in load_token_bytes(self.vocabulary).token_bytes]
        return int(self.frequencies[: len(lengths)] @ np.array(lengths, np.int64))

    @property
    def outside(self) -> int:
        """The number of tokens that are not in the vocabulary."""
        return int(self.frequencies[self.vocabulary.size])

    @property
    def bytes_per_token(self) -> float:
        """The mean number of bytes of text per token, without EOTs and invalid ids."""
        return self.text_bytes / max(1, self.tokens - self.boundaries - self.outside)

    def most_frequent(self, count: int) -> list[tuple[int, int]]:
        """Return the `count` most frequent tokens, without EOT, each with its frequency."""
        frequencies = self.frequencies[: self.vocabulary.size].copy()
        frequencies[self.vocabulary.eot] = 0
        best = np.argsort(-frequencies, kind="stable")[:count]
        return [(int(token), int(frequencies[token])) for token in best if frequencies[token]]


def empty_statistics(vocabulary: Vocabulary) -> TokenStatistics:
    """Return the statistics of no tokens, the start of a sum."""
    frequencies = np.zeros(vocabulary.size + 1, np.int64)
    return TokenStatistics(vocabulary, 0, 0, 0, 0, np.zeros(BUCKETS, np.int64), 0, frequencies)


def count_tokens(tokens: Tokens, vocabulary: Vocabulary) -> TokenStatistics:
    """Count the tokens of one block."""
    places = vocabulary.find_eots(tokens)
    lengths = np.diff(places) - 1
    outside = np.int64(vocabulary.size)  # a file may have any invalid id: all are counted as this one
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
    """Count the tokens of adjacent blocks."""
    return sum((count_tokens(block, vocabulary) for block in blocks), empty_statistics(vocabulary))


def bucket_range(bucket: int) -> tuple[int, int]:
    """Return the shortest and the longest length of a bucket."""
    return (0, 0) if bucket == 0 else (2 ** (bucket - 1), 2**bucket - 1)


def _bucket_counts(lengths: Counted) -> Counted:
    """Return the histogram of lengths, by their number of binary digits; a logarithm would round."""
    buckets = np.searchsorted(2 ** np.arange(BUCKETS - 1, dtype=np.int64), lengths, side="right")
    return np.bincount(buckets, minlength=BUCKETS)
