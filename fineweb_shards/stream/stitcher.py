"""Give the workers' blocks, in the order of the stream, their exact tokens and cursors. No I/O.

Two things are known only once the blocks are in order: the tokens around a seam (a cut inside a token), and the cursor
of a block that starts where reading can't start, which is the last cursor plus a number of tokens. Only blocks with a
seam have their tokens here; for all others the length is enough.

Blocks of different parts may come in any order, but those of each part are in order. Each part has its own cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from fineweb_shards.tokenizers.cuts import SeamMender
from fineweb_shards.types import Counts, Cursors, EncodedBlock, TokenBlock


def add_cursors(blocks: Iterable[EncodedBlock], starts: Cursors) -> Iterator[TokenBlock]:
    """Yield the blocks with their exact places in their parts. Tokens before `starts` are dropped: they are packed."""
    places = [replace(start, skip_tokens=0) for start in starts]
    skips = [start.skip_tokens for start in starts]  # still to drop of each part
    # The counts of each part's blocks since its last cursor: a resume would read, and count, them again.
    waiting = [Counts() for _ in starts]
    for block in blocks:
        part = block.part
        begin = block.start or places[part]
        places[part] = block.end or begin.after(len(block.tokens))
        counted = Counts()
        waiting[part] += block.counts
        if block.end:
            counted, waiting[part] = waiting[part], counted
        skipped = min(skips[part], len(block.tokens))
        skips[part] -= skipped
        # If an earlier run had larger blocks, a whole block may be skipped, and more to come.
        end = places[part].after(skips[part])
        kept = block.kept
        if skipped:
            kept = (np.array([(0, len(block.tokens))], np.int64) if kept is None else kept).clip(min=skipped)
            kept = kept[kept[:, 0] < kept[:, 1]]
        yield TokenBlock(
            begin, end, block.tokens, block.eots, counted, kept, part, block.ends_mid_document, block.ends_part
        )


def mend_seams(blocks: Iterable[EncodedBlock], get_mender: Callable[[], SeamMender]) -> Iterator[EncodedBlock]:
    """Yield the blocks with the tokens at every seam repaired. `get_mender` is only called if there is one.

    A block that ends at a seam is held back until the next one, which continues the same document. All others are
    yielded at once, so that they are not lost if the next one raises an error.
    """
    held: dict[int, EncodedBlock] = {}  # by part
    for block in blocks:
        left = held.pop(block.part, None)
        if left is not None:
            if block.starts_at_seam:
                left, block = _mend(left, block, get_mender)
            yield left
        assert left is not None or not block.starts_at_seam, "a part can't begin with a seam"
        if block.ends_at_seam:
            held[block.part] = block
        else:
            yield block
    yield from held.values()


def _mend(
    held: EncodedBlock, block: EncodedBlock, get_mender: Callable[[], SeamMender]
) -> tuple[EncodedBlock, EncodedBlock]:
    """Return the two blocks at a seam with their tokens repaired; the repaired tokens are in the second one."""
    left_start = int(held.eots[-1]) + 1 if len(held.eots) else 0
    right_end = int(block.eots[0]) if len(block.eots) else len(block.tokens)
    whole = left_start > 0 or not held.starts_at_seam  # the left side begins with a piece
    left, right = held.array[left_start:], block.array[:right_end]
    if not len(left) or not len(right):  # one side was quarantined: nothing to repair
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
