"""The stitcher: seams mended between blocks, and a cursor for every place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fineweb_shards.tokenizers.cuts import SeamMender
from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.types import Counts, Cursor, EncodedBlock, HeldTokens, TokenBlock
from fineweb_shards.vocabulary import GPT2
from tests.support import reference
from tests.support.stitching import stitch

EOT = [reference.EOT]
ONE = Counts(text_bytes=1)


def encoded(text: str, *, eot: bool = False, **more: object) -> EncodedBlock:
    tokens = np.array([*(EOT if eot else []), *reference.encode(text)], np.uint16)
    return EncodedBlock(tokens=tokens, eots=GPT2.find_eots(tokens), counts=ONE, **more)  # type: ignore[arg-type]


def stitched(*blocks: EncodedBlock) -> list[TokenBlock]:
    mender = SeamMender(reference.encode, load_token_bytes(GPT2))
    return list(stitch(blocks, lambda: mender, (Cursor(0, 0),)))


def test_a_run_cut_at_seams_is_the_run() -> None:
    """A document in four blocks with seams between them has the tokens of one call, and the blocks behind a seam are
    counted from the last place where reading can begin."""
    text = "a" * 101
    parts = [text[:40], text[40:61], text[61:62], text[62:]]
    blocks = [
        encoded(parts[0], eot=True, start=Cursor(0, 0), end=Cursor(0, 40, starts_mid_document=True), ends_at_seam=True),
        encoded(
            parts[1], start=None, end=Cursor(0, 61, starts_mid_document=True), starts_at_seam=True, ends_at_seam=True
        ),
        encoded(
            parts[2], start=None, end=Cursor(0, 62, starts_mid_document=True), starts_at_seam=True, ends_at_seam=True
        ),
        encoded(parts[3], start=None, end=Cursor(0, 101), starts_at_seam=True),
    ]
    found = stitched(*blocks)
    tokens = [token for block in found for token in block.tokens.tolist()]
    assert tokens == [*EOT, *reference.encode(text)]
    place = 0
    for block in found:
        assert block.start == Cursor(0, 0, place)
        place += len(block.tokens)
    assert found[-1].end == Cursor(0, 101)


def test_a_seam_touches_only_its_own_document() -> None:
    """Documents before and after the one that was cut stay as they are."""
    before = np.array([*EOT, 1, 2, *EOT, *reference.encode("bbb")], np.uint16)
    behind = np.array([*reference.encode("bbbb"), *EOT, 3, 4], np.uint16)
    end = Cursor(0, 9, starts_mid_document=True)
    left = EncodedBlock(Cursor(0, 0), end, before, GPT2.find_eots(before), ends_at_seam=True)
    right = EncodedBlock(None, Cursor(0, 20), behind, GPT2.find_eots(behind), starts_at_seam=True)
    tokens = [token for block in stitched(left, right) for token in block.tokens.tolist()]
    assert tokens == [*EOT, 1, 2, *EOT, *reference.encode("bbbbbbb"), *EOT, 3, 4]


def test_counts_are_counted_where_the_cursor_passes() -> None:
    """A block without an end of its own would be read again by a resume, so its counts wait."""
    found = stitched(
        encoded("one", eot=True, start=Cursor(0, 0), end=None),
        encoded("two", eot=True, start=None, end=Cursor(0, 1)),
        encoded("three", eot=True, start=Cursor(0, 1), end=Cursor(0, 2)),
    )
    assert [block.counts for block in found] == [Counts(), ONE + ONE, ONE]
    assert found[1].start == Cursor(0, 0, len(found[0].tokens))


def test_a_block_whose_tokens_are_elsewhere_passes_at_once() -> None:
    """Its length is enough, and it does not wait for the next block, which may raise an error."""
    kept = HeldTokens(7, 2, 5)
    block = EncodedBlock(Cursor(0, 0), None, kept, np.array([0]))

    def blocks() -> Iterator[EncodedBlock]:
        yield block
        raise ZeroDivisionError

    found = stitch(blocks(), lambda: SeamMender(reference.encode, []), (Cursor(0, 0),))
    assert next(found) == TokenBlock(Cursor(0, 0), Cursor(0, 0, 5), kept, block.eots)
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_seams_of_two_parts_do_not_meet() -> None:
    """Blocks of parts may come in any order: each side of a seam waits for the next block of its own part."""
    blocks: list[list[EncodedBlock]] = []
    for part, letter in enumerate("ab"):
        end = Cursor(0, 7, starts_mid_document=True)
        left = encoded(letter * 7, eot=True, start=Cursor(0, 0), end=end, ends_at_seam=True, part=part)
        right = encoded(letter * 6, start=None, end=Cursor(0, 13), starts_at_seam=True, part=part)
        blocks.append([left, right])
    mender = SeamMender(reference.encode, load_token_bytes(GPT2))
    for order in ([0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1]):
        queues = [iter(one) for one in blocks]
        found: list[list[int]] = [[], []]
        for block in stitch([next(queues[part]) for part in order], lambda: mender, (Cursor(0, 0),) * 2):
            found[block.part] += block.tokens.tolist()  # type: ignore[union-attr]
        assert found == [[*EOT, *reference.encode(letter * 13)] for letter in "ab"]
