"""Give the workers' blocks, in the order of the stream, their exact tokens and cursors. No I/O.

Two things are only known once the blocks are in order: the tokens around a seam (a document that was cut
inside a token), and the cursor of a block that starts where reading can't start, which is the last cursor
plus a number of tokens.
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
    """Yield the token stream from `start` on. `get_mender` is only called if there is a seam."""
    place = replace(start, skip_tokens=0)
    waiting = Counts()  # of blocks since the last cursor: a resume would read, and count, them again
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
    """Yield the blocks with the tokens at every seam repaired.

    A block that may end inside a document is held back, because the next may begin with a seam. Every other
    block is yielded at once, so that it is not lost if the next one raises an error.
    """
    held: EncodedBlock | None = None
    for block in blocks:
        if not block.starts_at_seam:
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
        whole = left_start > 0 or not held.starts_at_seam  # the left side begins where a piece begins
        left, right = held.tokens[left_start:], block.tokens[:right_end]
        if not len(left) or not len(right):  # one side was quarantined: there is nothing to repair
            yield replace(held, end=None)
            held = replace(block, start=None, starts_at_seam=False)
            continue
        mend = get_mender().mend(left, right, left_is_whole=whole)
        keep = len(held.tokens) - mend.left_tokens
        whole = whole and keep == left_start
        yield replace(held, tokens=held.tokens[:keep], end=None)  # its last EOT is before `left`
        joined = np.concatenate([mend.middle, block.tokens[mend.right_tokens :]])
        moved = block.eots + (len(mend.middle) - mend.right_tokens)  # all of them come after `right`
        held = replace(block, tokens=joined, eots=moved, start=None, starts_at_seam=not whole)
    if held is not None:
        yield held
