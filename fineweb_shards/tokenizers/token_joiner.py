"""Join documents that are tokens already, with EOTs between them: nothing is encoded, no engine is needed."""

from __future__ import annotations

import numpy as np

from fineweb_shards.token_lists import TokenLists
from fineweb_shards.tokenizers.eot_places import place_eots
from fineweb_shards.types import EncodedBlock, TextChunk, Tokens
from fineweb_shards.vocabulary import Vocabulary


class TokenJoiner:
    """Takes the place of an Encoder if the input is a column of ids (--tokens-column).

    It can't fail on a document: the ids were checked when they were read (sources/token_rows.py).
    """

    def __init__(self, vocabulary: Vocabulary, *, eot_first: bool) -> None:
        self.vocabulary = vocabulary
        self._eot_first = eot_first

    def join(self, chunk: TextChunk) -> EncodedBlock:
        """Return the chunk's tokens with EOTs."""
        lists = chunk.documents
        if not isinstance(lists, TokenLists):
            assert not lists, "text has to be encoded"
            lists = TokenLists()
        lengths = lists.lengths
        eots = place_eots(chunk, lengths, eot_first=self._eot_first)
        tokens: Tokens = np.empty(int(lengths.sum()) + len(eots), self.vocabulary.dtype)
        is_id = np.ones(len(tokens), np.bool_)
        is_id[eots] = False
        if lists:
            tokens[is_id] = lists.ids
        tokens[eots] = self.vocabulary.eot
        return EncodedBlock(
            start=chunk.start,
            end=chunk.end,
            tokens=tokens,
            eots=eots,
            ends_mid_document=chunk.ends_mid_document,
            counts=chunk.counts,
            problems=chunk.problems,
        )
