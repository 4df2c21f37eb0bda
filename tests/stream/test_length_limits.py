"""Documents left out by their length, over any blocks: what a plain loop with an `if` would keep."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.stream.length_limits import LengthLimits, leave_out
from fineweb_shards.stream.packer import PackedTotals, Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.types import Counts, Cursor, EncodedBlock
from fineweb_shards.vocabulary import GPT2
from tests.support import layout_reference, reference

LENGTHS = st.lists(st.integers(0, 12), max_size=30)
CUTS = st.lists(st.integers(0, 17), min_size=1, max_size=8)
LEAST, MOST = st.integers(0, 8), st.one_of(st.none(), st.integers(8, 14))


@dataclass(frozen=True)
class Stream:
    """A stream of documents with EOTs, before anything is left out."""

    tokens: list[int]
    ends: frozenset[int]  # the places at which a document is over


def stream_of(lengths: list[int], *, eot_first: bool) -> Stream:
    tokens: list[int] = []
    ends = {0}
    for number, length in enumerate(lengths):
        text = [number] * length
        tokens += [reference.EOT, *text] if eot_first else [*text, reference.EOT]
        ends.add(len(tokens))
    return Stream(tokens, frozenset(ends))


def expected_of(
    lengths: list[int], least: int, most: int | None, ratio: Fraction, *, eot_first: bool
) -> tuple[dict[str, list[int]], Counts]:
    """What the plain loop keeps, by split, and what it leaves out."""
    files: dict[str, list[int]] = {"val": [], "train": []}
    kept = short = long = 0
    for number, length in enumerate(lengths):
        if length < least:
            short += 1
        elif most is not None and length > most:
            long += 1
        else:
            text = [number] * length
            split = "val" if ratio and layout_reference.is_chosen(kept, ratio, 0) else "train"
            files[split] += [reference.EOT, *text] if eot_first else [*text, reference.EOT]
            kept += 1
    return files, Counts(short_documents=short, long_documents=long)


def blocks_from(stream: Stream, sizes: list[int], place: int, only_some: bool) -> list[EncodedBlock]:
    """The stream from a place on, in blocks of these sizes over and over. With `only_some`, every third block has no
    cursor at its end, as in the middle of a row group."""
    blocks: list[EncodedBlock] = []
    start: int | None = place
    while place < len(stream.tokens):
        size = sizes[len(blocks) % len(sizes)] or (len(blocks) % 2)  # some blocks are empty
        tokens = np.array(stream.tokens[place : place + size], np.uint16)
        end = place + len(tokens)
        mid = end not in stream.ends
        known = not only_some or len(blocks) % 3 != 0 or end == len(stream.tokens)
        blocks.append(
            EncodedBlock(
                None if start is None else Cursor(0, start, starts_mid_document=start not in stream.ends),
                Cursor(0, end, starts_mid_document=mid) if known else None,
                tokens,
                GPT2.find_eots(tokens),
                ends_mid_document=mid,
            )
        )
        place, start = end, end if known else None
    return blocks


@given(
    LENGTHS, CUTS, LEAST, MOST, st.booleans(), st.booleans(), st.integers(1, 25),
    st.sampled_from([Fraction(0), Fraction(1, 3)]),
)  # fmt: skip
def test_what_is_kept(
    lengths: list[int],
    sizes: list[int],
    least: int,
    most: int | None,
    eot_first: bool,
    only_some: bool,
    n: int,
    ratio: Fraction,
) -> None:
    """The documents that a plain loop keeps, in the same split, in any blocks, with the EOT on either side; and from
    every checkpoint the same rest and the same counts."""
    stream = stream_of(lengths, eot_first=eot_first)
    expected, left_out = expected_of(lengths, least, most, ratio, eot_first=eot_first)
    limits = LengthLimits(least, most)

    def pack_from(
        start: Cursor, done: PackedTotals
    ) -> tuple[dict[str, list[int]], Counts, list[tuple[Cursor, PackedTotals, Counts]]]:
        encoded = blocks_from(stream, sizes, start.position, only_some)
        kept = leave_out(encoded, [limits], (start,), eot_first=eot_first)
        rule = SplitRule(val_ratio=ratio)
        packer = Packer(n, split_rule=rule, eot_first=eot_first, done=done, starts=(start,))
        files: dict[str, list[int]] = {"val": [], "train": []}
        documents, counts, checkpoints = done.documents, Counts(), []
        for block in add_cursors(kept, (start,)):
            for part in packer.pack(Section.of(block)):
                tokens = [one for begin, end in part.ranges for one in np.asarray(block.tokens)[begin:end]]
                assert len(tokens) == part.tokens
                files[part.split] += tokens
                documents += part.documents
                counts += part.counts
                if part.checkpoint:
                    val = done.val_tokens + len(files["val"])
                    totals = PackedTotals(val, done.train_tokens + len(files["train"]), documents)
                    checkpoints.append((part.end[0], totals, counts))
        return files, counts, checkpoints

    whole, counts, checkpoints = pack_from(Cursor(0, 0), PackedTotals())
    assert whole == expected
    assert counts == left_out
    for end, done, counted in checkpoints:
        rest, counts, _ = pack_from(end, done)
        assert rest == {"val": whole["val"][done.val_tokens :], "train": whole["train"][done.train_tokens :]}
        assert counted + counts == left_out


@given(LENGTHS, CUTS, LEAST, MOST, st.booleans())
def test_no_more_is_held_back_than_needed(
    lengths: list[int], sizes: list[int], least: int, most: int | None, eot_first: bool
) -> None:
    """While a block is held back, the document that is in doubt has at most as many tokens as the limit."""
    stream = stream_of(lengths, eot_first=eot_first)
    taken = 0

    def counted() -> object:
        nonlocal taken
        for block in blocks_from(stream, sizes, 0, False):
            taken += len(block.tokens)
            yield block

    released = 0
    longest = max(least, most or 0)
    limits = LengthLimits(least, most)
    for block in leave_out(counted(), [limits], (Cursor(0, 0),), eot_first=eot_first):  # type: ignore[arg-type]
        assert taken - released <= longest + 2 + 2 * max(*sizes, 1)
        released += len(block.tokens)
    assert released == len(stream.tokens)


def test_a_part_that_ends_in_a_document_ends_it() -> None:
    """What is held back of a part comes before the block that ends it, and does not wait for other parts."""
    tokens, none = np.array([1, 2, 3], np.uint16), np.array([], np.int64)
    start = Cursor(0, 0)
    unfinished = EncodedBlock(start, Cursor(0, 3, 0, True), tokens, none, ends_mid_document=True)
    end = EncodedBlock(None, None, tokens[:0], none, ends_part=True)
    other = EncodedBlock(start, Cursor(0, 3), tokens, none, part=1, ends_mid_document=True)
    limits = [LengthLimits(0, 9), LengthLimits()]
    first, second, third = leave_out([unfinished, end, other], limits, (start, start), eot_first=False)
    assert first.kept is not None
    assert first.kept.tolist() == [[0, 3]]
    assert second is end
    assert third.part == 1
