"""Tokens back to the bytes they stand for, many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import Vocabulary

BORDER = b"\xff"  # stands for EOT: no UTF-8 text has this byte
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def decode(tokens: Tokens, vocabulary: Vocabulary) -> bytes:
    """The bytes of tokens; an EOT is a border, and nothing else is: what is no token, or the one byte that
    means a border, is the replacement character, as a decoder would show it."""
    if not len(tokens):
        return b""
    table = _byte_table(vocabulary)
    ids = np.minimum(
        tokens, np.int64(vocabulary.size)
    )  # all that are outside have one place, behind the others
    lengths = table.lengths[ids]
    ends = np.cumsum(lengths)
    # For every byte that comes out, its place in the table: four times as fast as joining pieces.
    places = np.repeat(table.starts[ids] - (ends - lengths), lengths)
    places += np.arange(ends[-1])
    return bytes(table.data[places].data)


@dataclass(frozen=True, slots=True)
class _ByteTable:
    """The bytes of all tokens one behind the other, and at last those of what is no token."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


@cache
def _byte_table(vocabulary: Vocabulary) -> _ByteTable:
    known = load_token_bytes(vocabulary).token_bytes
    spelled = [token.replace(BORDER, _REPLACEMENT) for token in known]
    spelled += [_REPLACEMENT] * (vocabulary.size + 1 - len(known))
    spelled[vocabulary.eot] = BORDER
    lengths = np.array([len(token) for token in spelled], np.int64)
    return _ByteTable(np.frombuffer(b"".join(spelled), np.uint8), np.cumsum(lengths) - lengths, lengths)
