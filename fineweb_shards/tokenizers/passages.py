"""Cut long documents into passages, which an engine encodes on their own, without copying them.

Memory stays bounded this way, and no engine gets a text that it can't handle (tiktoken panics on a million
spaces, tiktoken#400).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineweb_shards.texts import TextBuffer, Texts
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut

_CUT_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Passages:
    """The passages of some documents, in order."""

    texts: Texts
    seams: list[list[bool]]  # for each passage of each document, whether the cut before it is a seam


def cut_passages(texts: Texts, passage_bytes: int) -> Passages:
    """Cut each text into passages of at most `passage_bytes`; if no cut is found, the last one is longer."""
    buffers, seams = [], []
    for buffer in texts.buffers:
        starts, ends = [], []
        for start, end in zip(buffer.starts.tolist(), buffer.ends.tolist(), strict=True):
            cuts = _find_cuts(buffer.data, start, end, passage_bytes)
            borders = [start, *(position for position, _ in cuts), end]
            starts += borders[:-1]
            ends += borders[1:]
            seams.append([False, *(seam for _, seam in cuts)])
        buffers.append(TextBuffer(buffer.data, np.array(starts, np.int64), np.array(ends, np.int64)))
    return Passages(Texts(*buffers), seams)


def _find_cuts(data: bytes | memoryview, start: int, end: int, passage_bytes: int) -> list[tuple[int, bool]]:
    """Return where to cut the text `data[start:end]`, and for each cut whether it is a seam."""
    cuts = []
    position = start
    while end - position > passage_bytes:
        target = position + passage_bytes
        offset = max(position, target - _CUT_WINDOW_BYTES - CONTEXT_BYTES)
        window = bytes(data[offset : min(target + CONTEXT_BYTES, end)])
        cut = find_cut(window, CONTEXT_BYTES, target - offset)
        if cut is None:
            break
        position = offset + cut.position
        cuts.append((position, cut.seam))
    return cuts
