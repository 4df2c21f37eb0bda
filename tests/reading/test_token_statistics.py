"""TokenStatistics of tokens: what a plain loop counts, however the stream is cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.reading.statistics import (
    TokenStatistics,
    bucket_range,
    count_blocks,
    count_tokens,
    empty_statistics,
)
from fineweb_shards.vocabulary import GPT2
from tests.support import reference

streams = st.lists(st.sampled_from([reference.EOT, 1, 2, 300, 65535]), max_size=40)


def plain(tokens: list[int], *, eot_first: bool, starts_mid_document: bool = False) -> Counter[int]:
    """Document lengths by a loop over tokens."""
    pieces: list[list[int]] = [[]]
    for token in tokens:
        if token == reference.EOT:
            pieces.append([])
        else:
            pieces[-1].append(token)
    if eot_first or starts_mid_document:
        del pieces[0]  # began elsewhere
    if not eot_first and pieces and not pieces[-1]:
        del pieces[-1]
    return Counter(len(piece).bit_length() for piece in pieces)


@given(streams, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_parts_add_up_to_the_whole(tokens: list[int], cuts: list[int], eot_first: bool) -> None:
    """Whatever the cuts, also inside documents: counts, histogram and frequencies are a plain loop's."""
    array = np.array(tokens, np.uint16)
    found = count_blocks(np.split(array, sorted(cuts)), GPT2)
    assert (found.tokens, found.boundaries) == (len(tokens), tokens.count(reference.EOT))
    assert {i: int(n) for i, n in enumerate(found.frequencies) if n} == Counter(
        min(token, GPT2.size) for token in tokens
    )
    for starts_mid_document in (False, True):
        closed = found.closed(eot_first=eot_first, starts_mid_document=starts_mid_document)
        expected = plain(tokens, eot_first=eot_first, starts_mid_document=starts_mid_document)
        assert {i: int(n) for i, n in enumerate(closed.lengths) if n} == expected
    assert closed.outside == tokens.count(65535)


@given(st.lists(streams, min_size=3, max_size=3))
def test_adding_does_not_depend_on_the_order_of_adding(parts: list[list[int]]) -> None:
    """(a + b) + c is a + (b + c), and nothing changes by adding nothing."""
    a, b, c = (count_tokens(np.array(part, np.uint16), GPT2) for part in parts)

    def values(one: TokenStatistics) -> tuple[object, ...]:
        return (one.tokens, one.boundaries, one.head_tokens, one.tail_tokens, one.lengths.tolist(), one.longest)

    nothing = empty_statistics(GPT2)
    assert values((a + b) + c) == values(a + (b + c))
    assert values(a + nothing) == values(a) == values(nothing + a)


def test_bytes_per_token_and_frequent_tokens() -> None:
    """By the vocabulary, EOT left out."""
    text = "the cat and the dog and the end"
    tokens = reference.stream([text])
    found = count_tokens(tokens, GPT2)
    assert found.text_bytes == len(text)
    assert found.bytes_per_token == len(text) / (len(tokens) - 1)
    assert found.most_frequent(1) == [(reference.encode(" the")[0], 2)]
    assert bucket_range(0) == (0, 0)
    assert bucket_range(4) == (8, 15)
