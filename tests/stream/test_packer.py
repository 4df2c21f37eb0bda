"""The packer: cuts the stream, and loses or repeats nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.stream.packer import PackedTotals, Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.types import Counts, Cursor, EncodedBlock, HeldTokens, ShardSlice, TokenBlock
from fineweb_shards.vocabulary import GPT2
from tests.support import layout_reference, reference

BEGINNING = Cursor(0, 0)


def blocks_of(lengths: list[int]) -> list[EncodedBlock]:
    """Blocks whose tokens are 0, 1, 2 … over the whole stream."""
    blocks, start = [], 0
    for number, length in enumerate(lengths):
        tokens = np.arange(start, start + length, dtype=np.uint16)
        place = Cursor(0, number), Cursor(0, number + 1)
        blocks.append(EncodedBlock(*place, tokens, GPT2.find_eots(tokens), counts=Counts(text_bytes=1)))
        start += length
    return blocks


@dataclass(frozen=True)
class Part:
    """A slice, and the tokens that its ranges have in its block."""

    slice: ShardSlice
    tokens: list[int]


def pack_block(packer: Packer, block: TokenBlock) -> Iterator[Part]:
    for part in packer.pack(Section.of(block)):
        assert not isinstance(block.tokens, HeldTokens)
        begins = part.ranges[:, 0].tolist()
        assert begins == sorted(begins)
        tokens = [token for begin, end in part.ranges for token in block.tokens[begin:end].tolist()]
        assert part.tokens == len(tokens)
        yield Part(part, tokens)


def pack_all(packer: Packer, blocks: list[EncodedBlock], start: Cursor = BEGINNING) -> list[Part]:
    return [part for block in add_cursors(blocks, (start,)) for part in pack_block(packer, block)]


def shards_of(parts: list[Part]) -> list[list[int]]:
    shards: list[list[int]] = [[]]
    for part in parts:
        shards[-1] += part.tokens
        if part.slice.fills_shard:
            shards.append([])
    return shards if shards[-1] else shards[:-1]


def at(cursor: Cursor) -> tuple[int, int]:
    return cursor.file, cursor.position


lengths = st.lists(st.integers(0, 30), max_size=20)


@given(lengths, st.integers(1, 25), st.one_of(st.none(), st.integers(1, 200)))
def test_shards_are_the_stream_cut_every_n_tokens(sizes: list[int], n: int, limit: int | None) -> None:
    """Joined, the shards are the stream up to --max-tokens; each but the last has n tokens; none is empty."""
    shards = shards_of(pack_all(Packer(n, max_tokens=limit), blocks_of(sizes)))
    stream = list(range(sum(sizes)))[:limit]
    assert [token for shard in shards for token in shard] == stream
    assert all(len(shard) == n for shard in shards[:-1])
    assert all(shards)


@given(lengths, st.integers(1, 25))
def test_every_cursor_resumes_with_the_same_rest(sizes: list[int], n: int) -> None:
    """From the cursor at which a shard ends, the rest of the stream is the same, and so are the counts."""
    blocks = blocks_of(sizes)
    parts = pack_all(Packer(n), blocks)
    stream = list(range(sum(sizes)))
    for number, part in enumerate(parts):
        if not part.slice.fills_shard:
            continue
        done = sum(len(one.tokens) for one in parts[: number + 1])
        (end,) = part.slice.end
        rest = pack_all(Packer(n, starts=(end,)), blocks[end.position :], end)
        assert [token for one in rest for token in one.tokens] == stream[done:]
        counted = sum((one.slice.counts for one in parts[: number + 1] + rest), Counts())
        assert counted == sum((block.counts for block in blocks), Counts())


documents = st.lists(st.integers(0, 12), max_size=30)  # their lengths
RATIOS = st.sampled_from([Fraction(1, 10), Fraction(1, 2), Fraction(2, 3), Fraction(9, 10)])


@given(documents, st.integers(1, 25), RATIOS, st.booleans(), st.integers(1, 17), st.integers(0, 9))
def test_a_share_of_the_documents_goes_to_validation(
    lengths: list[int], n: int, ratio: Fraction, eot_first: bool, block: int, seed: int
) -> None:
    """Each document whole, by its number; a checkpoint wherever a segment of either split is full; and from every
    checkpoint the rest is the same."""
    expected: dict[str, list[int]] = {"val": [], "train": []}
    stream: list[int] = []
    for number, length in enumerate(lengths):
        text = [number] * length
        tokens = [reference.EOT, *text] if eot_first else [*text, reference.EOT]
        expected["val" if layout_reference.is_chosen(number, ratio, seed) else "train"] += tokens
        stream += tokens
    array = np.array(stream, np.uint16)

    def pack_from(start: int, done: PackedTotals) -> tuple[dict[str, list[int]], list[tuple[int, PackedTotals]]]:
        packer = Packer(n, split_rule=SplitRule(val_ratio=ratio, seed=seed), eot_first=eot_first, done=done)
        found: dict[str, list[int]] = {"val": [], "train": []}
        checkpoints = []
        for first in range(start, len(stream), block):
            part = array[first : first + block]
            place = Cursor(0, first), Cursor(0, first + len(part))
            for packed in pack_block(packer, TokenBlock(*place, part, GPT2.find_eots(part))):
                one = packed.slice
                assert one.documents == packed.tokens.count(reference.EOT)
                found[one.split] += packed.tokens
                if one.checkpoint:
                    sizes = done.val_tokens + len(found["val"]), done.train_tokens + len(found["train"])
                    done_tokens = one.end[0].position + one.end[0].skip_tokens
                    assert sum(sizes) == done_tokens
                    assert sizes[one.split == "train"] % n == 0
                    eots = stream[:done_tokens].count(reference.EOT)
                    checkpoints.append((done_tokens, PackedTotals(*sizes, eots)))
        return found, checkpoints

    found, checkpoints = pack_from(0, PackedTotals())
    assert found == expected
    assert len(checkpoints) == sum(len(tokens) // n for tokens in expected.values())
    for place, done in checkpoints:
        rest, _ = pack_from(place, done)
        assert rest["val"] == expected["val"][done.val_tokens :]
        assert rest["train"] == expected["train"][done.train_tokens :]


FILES = st.lists(documents, min_size=1, max_size=5)  # the lengths of the documents of each input file


@given(
    FILES, st.integers(1, 25), st.integers(0, 30), st.sampled_from(["documents", "files", "tokens"]),
    st.booleans(), st.booleans(), st.integers(1, 17), st.one_of(st.none(), st.integers(1, 200)),
)  # fmt: skip
def test_the_beginning_goes_to_validation(
    files: list[list[int]],
    n: int,
    first: int,
    unit: str,
    eot_first: bool,
    one_file: bool,
    block: int,
    limit: int | None,
) -> None:
    """The first so many documents, files or tokens and nothing else; its last file is finished where training begins;
    no file is empty; and from every checkpoint the rest is the same."""
    expected: dict[str, list[int]] = {"val": [], "train": []}
    streams: list[list[int]] = []
    number = 0
    for file, lengths in enumerate(files):
        streams.append([])
        for length in lengths:
            text = [number] * length
            tokens = [reference.EOT, *text] if eot_first else [*text, reference.EOT]
            streams[-1] += tokens
            for token in tokens:
                so_far = len(expected["val"]) + len(expected["train"])
                position = {"documents": number, "files": file, "tokens": so_far}[unit]
                if limit is None or so_far < limit:
                    expected["val" if position < first else "train"].append(token)
            number += 1
    whole = [token for stream in streams for token in stream][:limit]
    blocks = [
        EncodedBlock(Cursor(file, start), Cursor(file, start + len(part)), part, GPT2.find_eots(part))
        for file, stream in enumerate(streams)
        for start in range(0, len(stream), block)
        for part in [np.array(stream[start : start + block], np.uint16)]
    ]

    def pack_from(
        start: Cursor, done: PackedTotals
    ) -> tuple[dict[str, list[list[int]]], list[tuple[Cursor, PackedTotals]]]:
        left = None if limit is None else limit - done.val_tokens - done.train_tokens
        rule = SplitRule(val_files=(first,)) if unit == "files" else SplitRule(**{f"val_{unit}": first})
        packer = Packer(
            n, split_rule=rule, one_file=one_file, eot_first=eot_first,
            done=done, starts=(start,), max_tokens=left,
        )  # fmt: skip
        found: dict[str, list[list[int]]] = {"val": [[]], "train": [[]]}
        checkpoints = []
        rest = [one for one in blocks if one.start and at(one.start) >= at(start)]
        for block in add_cursors(rest, (start,)):
            for packed in pack_block(packer, block):
                split = packed.slice.split
                found[split][-1] += packed.tokens
                if packed.slice.fills_shard:
                    assert found[split][-1] or one_file, "a file that nobody has opened"
                    found[split].append([])
                if packed.slice.checkpoint:
                    val, train = (sum(map(len, found[split])) for split in ("val", "train"))
                    sizes = done.val_tokens + val, done.train_tokens + train
                    eots = whole[: sum(sizes)].count(reference.EOT)
                    checkpoints.append((packed.slice.end[0], PackedTotals(*sizes, eots)))
        assert not found["train"][0] or len(found["val"]) > 1 or not found["val"][0], "it is finished first"
        return found, checkpoints

    found, checkpoints = pack_from(Cursor(0, 0), PackedTotals())
    for split, tokens in expected.items():
        shards = [shard for shard in found[split] if shard]
        pieces = [tokens[start : start + n] for start in range(0, len(tokens), n)]
        assert shards == ([tokens] if one_file and tokens else pieces)
    for place, done in checkpoints:
        rest, _ = pack_from(place, done)
        assert [token for shard in rest["val"] for token in shard] == expected["val"][done.val_tokens :]
        assert [token for shard in rest["train"] for token in shard] == expected["train"][done.train_tokens :]


def test_a_stream_that_ends_on_a_border_leaves_no_empty_shard() -> None:
    """Ten tokens in shards of five are two shards."""
    parts = pack_all(Packer(5), blocks_of([4, 6]))
    assert [part.slice.fills_shard for part in parts] == [False, True, True]
    assert parts[-1].slice.end == (Cursor(0, 2),)


def test_a_block_longer_than_three_shards() -> None:
    """A long document runs over into as many shards as it takes."""
    shards = shards_of(pack_all(Packer(7), blocks_of([30])))
    assert [len(shard) for shard in shards] == [7, 7, 7, 7, 2]


def test_max_tokens_ends_the_stream() -> None:
    """Nothing comes after the last token that was asked for."""
    packer = Packer(5, max_tokens=7)
    parts = pack_all(packer, blocks_of([4, 6, 3]))
    assert packer.ended
    assert sum(len(part.tokens) for part in parts) == 7
    assert parts[-1].slice.end == (Cursor(0, 1, 3),)
