"""Pure: a worker's blocks in order in, blocks with their exact tokens and cursors out.

Two things can only be known when blocks stand in order: the tokens around a seam (a document cut
inside a token), and the cursor of a block that begins where reading can't begin, which is counted in
tokens from the last place where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from fineweb_shards.tokenizers.seams import SeamMender
from fineweb_shards.types import Counts, Cursor, EncodedBlock, TokenBlock


def stitch(
    blocks: Iterable[EncodedBlock], get_mender: Callable[[], SeamMender], start: Cursor
) -> Iterator[TokenBlock]:
    """The token stream from `start` on. Few streams have a seam, so the mender is only made when needed."""
    place = replace(start, skip_tokens=0)
    waiting = Counts()  # of blocks that a resume would read again: counted once the cursor passes them
    for block in mend_seams(blocks, get_mender):
        if block.start is not None:
            place = block.start
        begin, place = place, block.end or place.after(len(block.tokens))
        waiting += block.counts
        counted, waiting = (waiting, Counts()) if block.end else (Counts(), waiting)
        yield TokenBlock(begin, place, block.tokens, block.eots, counted)


def mend_seams(
    blocks: Iterable[EncodedBlock], get_mender: Callable[[], SeamMender]
) -> Iterator[EncodedBlock]:
    """The same stream with every torn token mended. A block that may end inside a document is held back,
    since the next may begin with a seam; any other passes at once: an error may come next."""
    held: EncodedBlock | None = None
    for block in blocks:
        if not block.seam:
            if held is not None:
                yield held
            held = block
            if block.end is not None and not block.end.starts_mid_document:
                yield held
                held = None
            continue
        assert held is not None, "a stream can't begin with a seam"
        left_start = int(held.eots[-1]) + 1 if len(held.eots) else 0
        right_end = int(block.eots[0]) if len(block.eots) else len(block.tokens)
        whole = left_start > 0 or not held.seam  # the left side begins where a piece begins
        left, right = held.tokens[left_start:], block.tokens[:right_end]
        if not len(left) or not len(right):  # one side is in quarantine: there is nothing to mend
            yield replace(held, end=None)
            held = replace(block, start=None, seam=False)
            continue
        mend = get_mender().mend(left, right, left_is_whole=whole)
        keep = len(held.tokens) - mend.left_tokens
        whole = whole and keep == left_start
        yield replace(held, tokens=held.tokens[:keep], end=None)  # its last EOT is before `left`
        joined = np.concatenate([mend.middle, block.tokens[mend.right_tokens :]])
        moved = block.eots + (len(mend.middle) - mend.right_tokens)  # all of them are behind `right`
        held = replace(block, tokens=joined, eots=moved, start=None, seam=not whole)
    if held is not None:
        yield held
