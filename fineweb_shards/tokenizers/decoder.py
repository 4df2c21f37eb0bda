"""Decode arrays of tokens to bytes, with NumPy, for inspection and reports. EOTs become a boundary byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import Vocabulary

BOUNDARY = b"\xff"  # the output for EOT: UTF-8 text never contains this byte
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def decode(tokens: Tokens, vocabulary: Vocabulary) -> bytes:
    """Return the bytes of tokens, with BOUNDARY for each EOT.

    Ids outside the vocabulary, and the token whose byte is BOUNDARY, become the replacement character, so
    that a BOUNDARY in the result is always an EOT.
    """
    if not len(tokens):
        return b""
    table = _byte_table(vocabulary)
    ids = np.minimum(tokens, np.int64(vocabulary.size))  # the table's last entry is for all invalid ids
    lengths = table.lengths[ids]
    ends = np.cumsum(lengths)
    # Compute each output byte's position in the table: four times as fast as joining pieces.
    positions = np.repeat(table.starts[ids] - (ends - lengths), lengths)
    positions += np.arange(ends[-1])
    return bytes(table.data[positions].data)


@dataclass(frozen=True, slots=True)
class _ByteTable:
    """The concatenated bytes of all tokens; the last entry is the replacement for invalid ids."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


@cache
def _byte_table(vocabulary: Vocabulary) -> _ByteTable:
    known = load_token_bytes(vocabulary).token_bytes
    spelled = [token.replace(BOUNDARY, _REPLACEMENT) for token in known]
    spelled += [_REPLACEMENT] * (vocabulary.size + 1 - len(known))
    spelled[vocabulary.eot] = BOUNDARY
    lengths = np.array([len(token) for token in spelled], np.int64)
    return _ByteTable(np.frombuffer(b"".join(spelled), np.uint8), np.cumsum(lengths) - lengths, lengths)
