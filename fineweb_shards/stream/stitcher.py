"""Give the workers' blocks, in the order of the stream, their exact tokens and cursors. No I/O.

Two things are only known once the blocks are in order: the tokens around a seam (a document that was cut inside a
token), and the cursor of a block that starts where reading can't start, which is the last cursor plus a number of
tokens. Only blocks with a seam have their tokens here; of all others the length is enough.

Blocks of several parts may take turns wherever a document ends. Each part has its own cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from fineweb_shards.tokenizers.cuts import SeamMender
from fineweb_shards.types import Counts, Cursors, EncodedBlock, TokenBlock


def add_cursors(blocks: Iterable[EncodedBlock], starts: Cursors) -> Iterator[TokenBlock]:
    """Yield the blocks of the stream from `starts` on with their exact places in their parts."""
    places = [replace(start, skip_tokens=0) for start in starts]
    # Of each part's blocks since its last cursor: a resume would read, and count, them again.
    waiting = [Counts() for _ in starts]
    for block in blocks:
        part = block.part
        begin = block.start or places[part]
        places[part] = block.end or begin.after(len(block.tokens))
        counted = Counts()
        waiting[part] += block.counts
        if block.end:
            counted, waiting[part] = waiting[part], counted
        yield TokenBlock(begin, places[part], block.tokens, block.eots, counted, block.kept, part)


def mend_seams(blocks: Iterable[EncodedBlock], get_mender: Callable[[], SeamMender]) -> Iterator[EncodedBlock]:
    """Yield the blocks with the tokens at every seam repaired. `get_mender` is only called if there is one.

    A block that ends at a seam is held back until the next one is there, which continues the same document. Every other
    block is yielded at once, so that it is not lost if the next one raises an error.
    """
    held: EncodedBlock | None = None
    for block in blocks:
        if block.starts_at_seam:
            assert held is not None, "a stream can't begin with a seam"
            assert held.part == block.part, "parts take turns between documents only"
            left, block = _mend(held, block, get_mender)
            yield left
        held = block if block.ends_at_seam else None
        if held is None:
            yield block
    if held is not None:
        yield held


def _mend(
    held: EncodedBlock, block: EncodedBlock, get_mender: Callable[[], SeamMender]
) -> tuple[EncodedBlock, EncodedBlock]:
    """Return the two blocks at a seam with their tokens repaired; those in doubt are in the second one."""
    left_start = int(held.eots[-1]) + 1 if len(held.eots) else 0
    right_end = int(block.eots[0]) if len(block.eots) else len(block.tokens)
    whole = left_start > 0 or not held.starts_at_seam  # the left side begins where a piece begins
    left, right = held.array[left_start:], block.array[:right_end]
    if not len(left) or not len(right):  # one side was quarantined: there is nothing to repair
        return replace(held, end=None), replace(block, start=None, starts_at_seam=False)
    mend = get_mender().mend(left, right, left_is_whole=whole)
    keep = len(held.tokens) - mend.left_tokens
    joined = np.concatenate([mend.middle, block.array[mend.right_tokens :]])
    moved = block.eots + (len(mend.middle) - mend.right_tokens)  # all of them come after `right`
    whole = whole and keep == left_start
    return (
        replace(held, tokens=held.array[:keep], end=None),  # its last EOT is before `left`
        replace(block, tokens=joined, eots=moved, start=None, starts_at_seam=not whole),
    )
