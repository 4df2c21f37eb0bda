"""Figures about tokens: how long the documents are, which tokens are frequent, bytes a token.

A `TokenStatistics` describes a segment of a stream. Two that stand side by side add up to that of the whole,
also where a document runs over the border: each remembers how many tokens it has before its first EOT and
behind its last one. So shards can be counted apart, in any number of processes, and then be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import Vocabulary

Counted = NDArray[np.int64]
BUCKETS = 48  # of document lengths: 0, 1, 2 to 3, 4 to 7 … tokens


@dataclass(frozen=True, slots=True, eq=False)
class TokenStatistics:
    """Of a segment of tokens. Lengths are without the EOT."""

    vocabulary: Vocabulary
    tokens: int
    borders: int  # EOTs
    head_tokens: int  # before the first EOT: the end of a document, or all of one; if closed, only the former
    tail_tokens: int  # behind the last EOT
    lengths: Counted  # how many documents lie whole between two EOTs, by bucket
    longest: int  # of those
    frequencies: Counted  # of every token id, and at last of all that are none

    def __add__(self, other: TokenStatistics) -> TokenStatistics:
        lengths = self.lengths + other.lengths
        longest = max(self.longest, other.longest)
        if self.borders and other.borders:  # the document between them is whole now
            joined = self.tail_tokens + other.head_tokens
            lengths = lengths + _bucket_counts(np.array([joined]))
            longest = max(longest, joined)
        return TokenStatistics(
            self.vocabulary,
            self.tokens + other.tokens,
            self.borders + other.borders,
            self.head_tokens + (0 if self.borders else other.head_tokens),
            other.tail_tokens + (0 if other.borders else self.tail_tokens),
            lengths,
            longest,
            self.frequencies + other.frequencies,
        )

    def closed(self, *, eot_first: bool, begins_inside: bool = False) -> TokenStatistics:
        """With the ends counted: the documents that begin in the segment.

        With EOT in front these are as many as there are EOTs; what stands before the first one is the rest
        of a document that began elsewhere. With EOT behind, what is there at the beginning is a document
        unless `begins_inside` says otherwise, and at the end if there is anything.
        """
        if eot_first:
            ends = [self.tail_tokens] if self.borders else []
        elif not self.borders:
            ends = [self.tokens] if self.tokens and not begins_inside else []
        else:
            ends = ([] if begins_inside else [self.head_tokens]) + (
                [self.tail_tokens] if self.tail_tokens else []
            )
        rest_tokens = self.head_tokens if eot_first or begins_inside else 0
        lengths = self.lengths + _bucket_counts(np.array(ends, np.int64))
        longest = max([self.longest, *ends])
        return replace(self, head_tokens=rest_tokens, tail_tokens=0, lengths=lengths, longest=longest)

    @property
    def documents(self) -> int:
        """How many are in the histogram."""
        return int(self.lengths.sum())

    @property
    def mean_tokens(self) -> float:
        """Of the documents that begin in the segment, once it is closed; of their rest what lies in it."""
        return (self.tokens - self.borders - self.head_tokens) / max(1, self.documents)

    @property
    def text_bytes(self) -> int:
        """Of all tokens that stand for text."""
        lengths = [len(token) for token in load_token_bytes(self.vocabulary).token_bytes]
        return int(self.frequencies[: len(lengths)] @ np.array(lengths, np.int64))

    @property
    def outside(self) -> int:
        """Tokens that are not in the vocabulary."""
        return int(self.frequencies[self.vocabulary.size])

    @property
    def bytes_per_token(self) -> float:
        return self.text_bytes / max(1, self.tokens - self.borders - self.outside)

    def most_frequent(self, count: int) -> list[tuple[int, int]]:
        """The most frequent tokens (EOT left out), and how often they come."""
        frequencies = self.frequencies[: self.vocabulary.size].copy()
        frequencies[self.vocabulary.eot] = 0
        best = np.argsort(-frequencies, kind="stable")[:count]
        return [(int(token), int(frequencies[token])) for token in best if frequencies[token]]


def count_nothing(vocabulary: Vocabulary) -> TokenStatistics:
    """The figures of no tokens at all."""
    frequencies = np.zeros(vocabulary.size + 1, np.int64)
    return TokenStatistics(vocabulary, 0, 0, 0, 0, np.zeros(BUCKETS, np.int64), 0, frequencies)


def count_tokens(tokens: Tokens, vocabulary: Vocabulary) -> TokenStatistics:
    """The figures of one block."""
    places = vocabulary.find_eots(tokens)
    lengths = np.diff(places) - 1
    outside = np.int64(vocabulary.size)  # a file may hold any number: all that are no ids are counted as one
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
    """The figures of blocks that stand side by side."""
    return sum((count_tokens(block, vocabulary) for block in blocks), count_nothing(vocabulary))


def bucket_range(bucket: int) -> tuple[int, int]:
    """The shortest and the longest length of a bucket."""
    return (0, 0) if bucket == 0 else (2 ** (bucket - 1), 2**bucket - 1)


def _bucket_counts(lengths: Counted) -> Counted:
    """By the number of binary digits; exact, where a logarithm would round."""
    buckets = np.searchsorted(2 ** np.arange(BUCKETS - 1, dtype=np.int64), lengths, side="right")
    return np.bincount(buckets, minlength=BUCKETS)
