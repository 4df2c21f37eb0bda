"""Cut long documents into passages, which an engine encodes on their own, without copying them.

Memory stays bounded this way, and no engine gets a text that it can't handle (tiktoken panics on a million
spaces, tiktoken#400).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineweb_shards.texts import TextBuffer, Texts
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, Cut, find_cut, find_first_cut
from fineweb_shards.vocabulary import CutRule

_SEAM_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Passages:
    """The passages of some documents, in order."""

    texts: Texts
    seams: list[list[bool]]  # for each passage of each document, whether the cut before it is a seam


def cut_passages(texts: Texts, passage_bytes: int, rule: CutRule | None) -> Passages:
    """Cut each text into passages of about `passage_bytes`, longer where there is no place to cut."""
    buffers, seams = [], []
    for buffer in texts.buffers:
        data = memoryview(buffer.data)
        starts, ends = [], []
        for start, end in zip(buffer.starts.tolist(), buffer.ends.tolist(), strict=True):
            cuts = find_cuts(data[start:end], passage_bytes, rule)
            borders = [start, *(start + cut.position for cut in cuts), end]
            starts += borders[:-1]
            ends += borders[1:]
            seams.append([False, *(cut.seam for cut in cuts)])
        buffers.append(TextBuffer(buffer.data, np.array(starts, np.int64), np.array(ends, np.int64)))
    return Passages(Texts(*buffers), seams)


def find_cuts(text: memoryview, piece_bytes: int, rule: CutRule | None) -> list[Cut]:
    """Return where to cut a text. Without seams a piece of more than `piece_bytes` has no safe cut inside it,
    so that its length depends on the text alone."""
    has_seams = rule == "gpt2"
    cuts: list[Cut] = []
    position = 0
    while len(text) - position > piece_bytes + (CONTEXT_BYTES if has_seams else 0):
        target = position + piece_bytes
        # Where there are seams, one near the target is better than a safe cut far from it.
        low = max(position + CONTEXT_BYTES, target - _SEAM_WINDOW_BYTES) if has_seams else position
        cut = find_cut(text, low, target, rule) or find_first_cut(text, target, rule)
        if cut is None:
            break
        cuts.append(cut)
        position = cut.position
    return cuts
