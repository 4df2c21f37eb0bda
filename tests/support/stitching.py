"""Blocks of workers as the token stream of a run, in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fineweb_shards.stream.stitcher import add_cursors, mend_seams
from fineweb_shards.tokenizers.cuts import SeamMender
from fineweb_shards.types import Cursors, EncodedBlock, TokenBlock


def stitch(
    blocks: Iterable[EncodedBlock], get_mender: Callable[[], SeamMender], starts: Cursors
) -> Iterator[TokenBlock]:
    """Yield the token stream from `starts` on."""
    return add_cursors(mend_seams(blocks, get_mender), starts)
