"""Say where EOTs belong among the tokens of a chunk: before each document, or after it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.types import Places, TextChunk


def place_eots(chunk: TextChunk, lengths: NDArray[np.int64], *, eot_first: bool) -> Places:
    """Return the positions of the EOTs among the tokens of documents of these lengths, EOTs included.

    A document that continues from the previous chunk, or in the next, has no EOT on that side.
    """
    ends = np.cumsum(lengths)
    eots: Places = (ends - lengths if eot_first else ends) + np.arange(len(lengths))
    if len(eots) and eot_first and chunk.starts_mid_document:
        eots = eots[1:] - 1
    if len(eots) and not eot_first and chunk.ends_mid_document:
        eots = eots[:-1]
    return eots
