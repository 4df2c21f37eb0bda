"""The mix by tokens: what a plain loop over documents gives, in any blocks, in any order of the parts, and resumed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.stream.length_limits import LengthLimits, leave_out
from fineweb_shards.stream.mix import MOST_WEIGHT, Mixer, MixRule, mix
from fineweb_shards.stream.packer import PackedTotals, Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.types import Counts, Cursor, Cursors, EncodedBlock, HeldTokens, Taken, TokenBlock, Tokens
from fineweb_shards.vocabulary import GPT2
from tests.support import layout_reference, mix_reference, reference

EOT = reference.EOT


NO_LIMITS = LengthLimits()
ALL_FOR_TRAINING = SplitRule()


@dataclass(frozen=True)
class PartInput:
    """A part of the input: its files are lists of the lengths of documents; the first ones are for validation."""

    files: tuple[tuple[int, ...], ...]
    weight: int
    val_files: int = 0
    epochs: int = 1
    limits: LengthLimits = NO_LIMITS

    def is_kept(self, length: int) -> bool:
        most = self.limits.most_tokens
        return length >= self.limits.least_tokens and (most is None or length <= most)

    def read_files(self) -> tuple[tuple[int, ...], ...]:
        """The files in the order in which they are read, those for training once an epoch."""
        return self.files[: self.val_files] + self.files[self.val_files :] * self.epochs


@dataclass(frozen=True)
class Build:
    """What is built: the parts, and the settings that decide the order and the splits."""

    parts: tuple[PartInput, ...]
    until: str = "first-exhausted"
    eot_first: bool = True
    shard_tokens: int = 10
    split: SplitRule = ALL_FOR_TRAINING
    max_tokens: int | None = None

    @property
    def val_files(self) -> tuple[int, ...]:
        return tuple(part.val_files for part in self.parts)

    @property
    def starts(self) -> Cursors:
        return (Cursor(0, 0),) * len(self.parts)

    def document(self, part: int, number: int, length: int) -> list[int]:
        """The tokens of a document, which are different for each part, and for neighbours in it."""
        text = [part * 1000 + number % 1000] * length
        return [EOT, *text] if self.eot_first else [*text, EOT]

    def documents(self, part: int) -> list[list[tuple[bool, list[int]]]]:
        """The documents of each file in the order in which they are read, and whether they are kept."""
        one, numbers = self.parts[part], itertools.count()
        return [
            [(one.is_kept(length), self.document(part, next(numbers), length)) for length in lengths]
            for lengths in one.read_files()
        ]

    def expected(self) -> list[tuple[int, list[int]]]:
        """The stream: the documents that are kept, each with its part, by the plain loop."""
        val, train = [], []
        for number, part in enumerate(self.parts):
            files = [[tokens for is_kept, tokens in file if is_kept] for file in self.documents(number)]
            val.append([one for file in files[: part.val_files] for one in file])
            train.append([one for file in files[part.val_files :] for one in file])
        weights = [part.weight for part in self.parts]
        return list(mix_reference.mix(train, weights, self.until, (), val))

    def mixer(self, starts: Cursors, taken: Sequence[Taken]) -> Mixer:
        rule = MixRule(tuple(part.weight for part in self.parts), self.until == "all-exhausted")
        tokens = [one.tokens for one in taken]
        return Mixer(rule, starts, tokens, eot_first=self.eot_first, val_files=self.val_files)


def read_blocks(build: Build, part: int, start: Cursor, sizes: list[int], only_some: bool) -> Iterator[EncodedBlock]:
    """The blocks of a part from a cursor on, of these sizes over and over, and the one that ends it. The position in a
    file counts tokens. With `only_some`, reading can't begin at the end of every third block."""
    size, number = itertools.cycle(sizes), 0
    for file, documents in enumerate(build.documents(part)):
        if file < start.file:
            continue
        stream = np.array([token for _, tokens in documents for token in tokens], np.uint16)
        ends = {0, *itertools.accumulate(len(tokens) for _, tokens in documents)}
        place = start.position if file == start.file else 0
        known: Cursor | None = Cursor(file, place, 0, place not in ends)
        while place < len(stream) or (place == 0 and known is not None):  # an empty file has an empty block
            tokens = stream[place : place + next(size)]
            begin, place, number = known, place + len(tokens), number + 1
            mid = place not in ends
            known = Cursor(file, place, 0, mid) if number % 3 or not only_some or place == len(stream) else None
            yield EncodedBlock(
                begin, known, tokens, GPT2.find_eots(tokens), ends_mid_document=mid,
                counts=Counts(text_bytes=len(tokens)), part=part,
            )  # fmt: skip
            if not len(stream):
                break
    yield EncodedBlock(None, None, np.empty(0, np.uint16), np.empty(0, np.int64), part=part, ends_part=True)


def in_any_order(queues: list[Iterator[EncodedBlock]], generator: random.Random) -> Iterator[EncodedBlock]:
    """Blocks of the parts in an order that has nothing to do with what is needed; sometimes one part is far ahead."""
    left = dict(enumerate(queues))
    while left:
        part = generator.choice([*left])
        for _ in range(generator.choice([1, 1, 2, 9])):
            block = next(left[part], None)
            if block is None:
                del left[part]
                break
            yield block


def on_demand(queues: list[Iterator[EncodedBlock]], mixer: Mixer) -> Iterator[EncodedBlock]:
    """Only blocks that the mixer asks for."""
    while not mixer.ended:
        block = next(queues[mixer.next_part], None)
        assert block is not None, "it asks for a part that has ended"
        yield block


@dataclass
class Packed:
    """What a run has packed."""

    tokens: dict[str, list[int]]
    counts: Counts
    taken: tuple[Taken, ...]
    checkpoints: list[tuple[Cursors, PackedTotals, tuple[Taken, ...], Counts]]


def pack_from(
    build: Build,
    blocks: Callable[[Mixer, Cursors], Iterator[EncodedBlock]],
    starts: Cursors | None = None,
    done: PackedTotals | None = None,
    taken: tuple[Taken, ...] = (),
) -> Packed:
    """Mix and pack the blocks of a run that begins at `starts`."""
    starts, done, taken = starts or build.starts, done or PackedTotals(), taken or (Taken(),) * len(build.parts)
    mixer = build.mixer(starts, taken)
    left = None if build.max_tokens is None else build.max_tokens - done.val_tokens - done.train_tokens
    packer = Packer(
        build.shard_tokens, split_rule=build.split, eot_first=build.eot_first, done=done, starts=starts, taken=taken,
        max_tokens=left,
    )  # fmt: skip
    kept = leave_out(blocks(mixer, starts), [part.limits for part in build.parts], starts, eot_first=build.eot_first)
    found, documents, finished = Packed({"val": [], "train": []}, Counts(), taken, []), done.documents, set[int]()
    alive: list[TokenBlock] = []  # so that no other block has the same id
    for section in mix(add_cursors(kept, starts), mixer):
        check_section(section, finished)
        alive += section.blocks
        for one in packer.pack(section):
            tokens = tokens_of(section, one.ranges, one.holders)
            assert (len(tokens), tokens.count(EOT)) == (one.tokens, one.documents)
            found.tokens[one.split] += tokens
            documents += one.documents
            found.counts += one.counts
            found.taken = one.taken
            if one.checkpoint:
                val, train = (len(found.tokens[split]) for split in ("val", "train"))
                totals = PackedTotals(done.val_tokens + val, done.train_tokens + train, documents)
                found.checkpoints.append((one.end, totals, one.taken, found.counts))
        if packer.ended:
            break
    return found


def tokens_of(section: Section, ranges: Tokens, holders: Tokens) -> list[int]:
    """The tokens in ranges of the section's blocks."""
    blocks = [np.asarray(block.tokens) for block in section.blocks]
    return [
        token
        for (begin, end), holder in zip(ranges.tolist(), holders.tolist(), strict=True)
        for token in blocks[holder][begin:end].tolist()
    ]


def check_section(section: Section, finished: set[int]) -> None:
    """Its numbers are those of its tokens, and nothing comes of a block that was finished."""
    tokens = tokens_of(section, section.ranges, section.holders)
    lengths = section.ranges[:, 1] - section.ranges[:, 0]
    assert section.tokens == len(tokens) == lengths.sum()
    assert section.firsts.tolist() == (np.cumsum(lengths) - lengths).tolist()
    assert section.eots.tolist() == [number for number, token in enumerate(tokens) if token == EOT]
    assert (lengths > 0).all()
    assert not finished & {id(block) for block in section.blocks}
    finished |= {id(section.blocks[number]) for number in section.finished}


def splits_of(build: Build) -> tuple[dict[str, list[int]], list[tuple[int, bool, bool]]]:
    """The tokens of each split by the plain loop; and of each token of the stream the part, whether it counts in
    the mix, and whether it is an EOT."""
    files: dict[str, list[int]] = {"val": [], "train": []}
    origins: list[tuple[int, bool, bool]] = []
    rule = build.split
    val_count = sum(
        is_kept
        for number, part in enumerate(build.parts)
        for file in build.documents(number)[: part.val_files]
        for is_kept, _ in file
    )
    for number, (part, document) in enumerate(build.expected()):
        for token in document:
            if build.max_tokens is not None and len(origins) == build.max_tokens:
                break
            if rule.val_ratio:
                is_val = layout_reference.is_chosen(number, rule.val_ratio, rule.seed)
            elif rule.val_documents:
                is_val = number < rule.val_documents
            elif rule.val_files:
                is_val = number < val_count
            else:
                is_val = len(origins) < rule.val_tokens
            files["val" if is_val else "train"].append(token)
            origins.append((part, number >= val_count or not rule.val_files, token == EOT))
    return files, origins


LIMITS = st.builds(LengthLimits, st.sampled_from([0, 0, 1, 5]), st.sampled_from([None, None, 5, 9]))
PARTS = st.builds(
    PartInput,
    st.lists(st.lists(st.integers(0, 12), max_size=8).map(tuple), max_size=3).map(tuple),
    st.sampled_from([1, 1, 2, 3, 7, 999_999, MOST_WEIGHT]),
    st.integers(0, 2),
    st.sampled_from([1, 1, 1, 2]),
    LIMITS,
)
SPLITS = st.one_of(
    st.sampled_from([SplitRule(), SplitRule(val_files=(1,))]),  # a stand-in: the files are those of the parts
    st.builds(lambda n: SplitRule(val_tokens=n), st.integers(1, 30)),
    st.builds(lambda n: SplitRule(val_documents=n), st.integers(1, 9)),
    st.builds(lambda ratio: SplitRule(val_ratio=ratio), st.sampled_from([Fraction(1, 2), Fraction(1, 5)])),
)


@st.composite
def builds(draw: st.DrawFn) -> Build:
    """Any build of up to six small parts."""
    parts = draw(st.lists(PARTS, min_size=1, max_size=draw(st.sampled_from([1, 2, 3, 6]))))
    split = draw(SPLITS)
    parts = [replace(one, val_files=min(len(one.files), one.val_files if split.val_files else 0)) for one in parts]
    if split.val_files:
        split = (
            SplitRule(val_files=tuple(one.val_files for one in parts))
            if any(p.val_files for p in parts)
            else SplitRule()
        )
    until = draw(st.sampled_from(["first-exhausted", "all-exhausted"]))
    limit = draw(st.one_of(st.none(), st.none(), st.integers(1, 60)))
    return Build(tuple(parts), until, draw(st.booleans()), draw(st.integers(1, 25)), split, limit)


SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 40]), min_size=1, max_size=5).filter(any)


@given(builds(), SIZES, SIZES, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_mix_is_that_of_the_plain_loop(
    build: Build, sizes: list[int], others: list[int], only_some: bool, demand: bool, generator: random.Random
) -> None:
    """Token for token and split for split, in any blocks, whichever part's blocks come first; and from every checkpoint
    the rest is the same, in other blocks, and so are the tokens that were taken of each part, and the counts; also if
    it is resumed twice."""
    check_build(build, sizes, others, only_some, demand, generator)


def check_build(
    build: Build, sizes: list[int], others: list[int], only_some: bool, demand: bool, generator: random.Random
) -> None:
    def blocks_of(sizes: list[int]) -> Callable[[Mixer, Cursors], Iterator[EncodedBlock]]:
        def blocks(mixer: Mixer, starts: Cursors) -> Iterator[EncodedBlock]:
            queues = [read_blocks(build, part, start, sizes, only_some) for part, start in enumerate(starts)]
            return on_demand(queues, mixer) if demand else in_any_order(queues, generator)

        return blocks

    expected, origins = splits_of(build)

    def taken_of(tokens: int) -> tuple[Taken, ...]:
        """What the first tokens of the stream have of each part."""
        found = [Taken()] * len(build.parts)
        for part, counts, is_eot in origins[:tokens]:
            found[part] = Taken(found[part].tokens + counts, found[part].documents + (counts and is_eot))
        return tuple(found)

    whole = pack_from(build, blocks_of(sizes))
    assert whole.tokens == expected
    assert whole.taken == taken_of(len(origins))
    if build.until == "all-exhausted" and build.max_tokens is None:
        read = [tokens for part in range(len(build.parts)) for file in build.documents(part) for _, tokens in file]
        assert whole.counts.text_bytes == sum(map(len, read))
        left_out = whole.counts.short_documents + whole.counts.long_documents
        assert left_out == len(read) - len(build.expected())
    runs = [(whole, Counts(), 2)]  # each with the counts before it, and how often it is resumed
    while runs:
        run, before, resumes = runs.pop()
        for end, done, taken, counts in run.checkpoints[: len(whole.checkpoints) if resumes == 2 else 1]:
            assert taken == taken_of(done.val_tokens + done.train_tokens)
            rest = pack_from(build, blocks_of(others), end, done, taken)
            assert rest.tokens["val"] == expected["val"][done.val_tokens :]
            assert rest.tokens["train"] == expected["train"][done.train_tokens :]
            assert rest.taken == whole.taken
            if build.until == "all-exhausted" and build.max_tokens is None:
                assert before + counts + rest.counts == whole.counts
            if resumes > 1:
                runs.append((rest, before + counts, resumes - 1))


@pytest.mark.parametrize("seed", range(6))
def test_large_documents_of_very_different_weights(seed: int) -> None:
    """The same for documents of up to 100,000 tokens, over many blocks, and weights up to 1:1,000,000."""
    generator = random.Random(seed)
    parts = []
    for _ in range(generator.randint(2, 6)):
        lengths = [int(10 ** generator.uniform(0, 5)) for _ in range(generator.randint(1, 12))]
        weight = int(10 ** generator.uniform(0, 6))
        limits = LengthLimits(generator.choice([0, 0, 50]), generator.choice([None, None, 50_000]))
        parts.append(PartInput((tuple(lengths[:4]), tuple(lengths[4:])), weight, seed % 2, limits=limits))
    rules = [SplitRule(val_ratio=Fraction(1, 5)), SplitRule(val_files=(1,) * len(parts)), SplitRule(val_tokens=999)]
    build = Build(
        tuple(replace(part, val_files=part.val_files if rules[seed % 3].val_files else 0) for part in parts),
        generator.choice(["first-exhausted", "all-exhausted"]),
        eot_first=seed < 3, shard_tokens=40_000,
        split=rules[seed % 3] if seed % 2 or seed % 3 != 1 else SplitRule(),
    )  # fmt: skip
    check_build(build, [7000, 0, 1, 30_000], [4096], seed % 2 == 0, seed % 3 == 0, generator)


def held_blocks(part: int, lengths: list[int], most: int, generator: random.Random) -> Iterator[TokenBlock]:
    """Blocks of documents of these lengths (EOT included, and first), without tokens."""
    eots = np.array([0, *itertools.accumulate(lengths)], np.int64)
    place = 0
    while place < eots[-1]:
        end = min(int(eots[-1]), place + generator.randint(0, most))
        here = eots[:-1][(eots[:-1] >= place) & (eots[:-1] < end)] - place
        mid = end not in eots
        yield TokenBlock(
            Cursor(0, place), Cursor(0, end), HeldTokens(0, 0, end - place), here, part=part, ends_mid_document=mid
        )
        place = end
    nothing = HeldTokens(0, 0, 0)
    yield TokenBlock(Cursor(0, place), Cursor(0, place), nothing, eots[:0], part=part, ends_part=True)


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_compared_exactly(seed: int) -> None:
    """Also where t_i / w_i and t_j / w_j differ by no more than 1 / w_i w_j, after any number of tokens."""
    generator = random.Random(seed)
    weight = generator.randint(MOST_WEIGHT - 1000, MOST_WEIGHT - 1)
    weights = generator.choice(
        [(weight, weight + 1), (weight, weight + 1), (MOST_WEIGHT, 999_983, 999_979), (1, 1), (1, MOST_WEIGHT)]
    )
    lengths = [
        [1] + [weight] * 30 + [generator.choice([1, weight, weight + 1, max(1, weight - 1), 10**7]) for _ in range(60)]
        for weight in weights
    ]
    until = generator.choice(["first-exhausted", "all-exhausted"])
    queues = [held_blocks(part, one, 10**7, generator) for part, one in enumerate(lengths)]
    mixer = Mixer(MixRule(weights, until == "all-exhausted"), (Cursor(0, 0),) * len(weights), [0] * len(weights),
                  eot_first=True)  # fmt: skip
    found: list[tuple[int, int]] = []  # part, and where in the stream its document begins
    tokens = 0
    while not mixer.ended:
        mixer.add(next(queues[mixer.next_part]))
        while (section := mixer.take()) is not None:
            holders = section.holders_of_eots(0, section.tokens)
            parts = [section.blocks[holder].part for holder in holders]
            found += zip(parts, (section.eots + tokens).tolist(), strict=True)
            tokens += section.tokens
    expected = [*mix_reference.mix([[range(n) for n in one] for one in lengths], weights, until)]
    begins = [0, *itertools.accumulate(len(document) for _, document in expected)]
    assert tokens == begins.pop()
    assert found == [(part, begin) for (part, _), begin in zip(expected, begins, strict=True)]


@given(builds(), SIZES)
def test_no_part_is_far_from_its_share(build: Build, sizes: list[int]) -> None:
    """After any token no part is ahead of its share by more than one of its own documents, nor behind it by more than
    its share of one document of each other part. The share is that in the tokens of all parts that have not run out."""
    build = replace(build, split=SplitRule(), max_tokens=None, eot_first=True)
    build = replace(build, parts=tuple(replace(part, val_files=0) for part in build.parts))
    mixer = build.mixer(build.starts, (Taken(),) * len(build.parts))
    queues = [read_blocks(build, part, start, sizes, False) for part, start in enumerate(build.starts)]
    kept = leave_out(on_demand(queues, mixer), [part.limits for part in build.parts], build.starts, eot_first=True)
    weights = [part.weight for part in build.parts]
    lengths = [
        [length + 1 for file in part.read_files() for length in file if part.is_kept(length)] for part in build.parts
    ]
    taken, lasts = [0] * len(weights), [0] * len(weights)
    for section in mix(add_cursors(kept, build.starts), mixer):
        for (begin, end), holder in zip(section.ranges.tolist(), section.holders.tolist(), strict=True):
            block = section.blocks[holder]
            for token in np.asarray(block.tokens)[begin:end].tolist():
                taken[block.part] += 1
                if token == EOT:
                    lasts[block.part] = lengths[block.part].pop(0)
                ends = build.until == "first-exhausted"  # else the mix continues without the part
                left = [part for part in range(len(weights)) if ends or lengths[part] or part == block.part]
                weight, tokens, longest = (sum(each[part] for part in left) for each in (weights, taken, lasts))
                for part in left:
                    ahead = taken[part] * weight - weights[part] * tokens
                    assert ahead <= lasts[part] * (weight - weights[part])
                    assert -ahead <= weights[part] * (longest - lasts[part])


def test_the_part_to_wait_for() -> None:
    """It is the one with the smallest t / w; in the middle of a document, the part that it belongs to."""
    mixer = Mixer(MixRule((1, 2)), (Cursor(0, 0),) * 2, [0, 0], eot_first=True)

    def add(part: int, tokens: int, eots: list[int], *, mid: bool = False) -> list[tuple[int, int]]:
        """Add a block; return what comes out: ranges, as parts and numbers of tokens."""
        block = TokenBlock(
            Cursor(0, 0), Cursor(0, 1), HeldTokens(0, 0, tokens), np.array(eots, np.int64), part=part,
            ends_mid_document=mid,
        )  # fmt: skip
        mixer.add(block)
        section = mixer.take()
        if section is None:
            return []
        lengths = section.ranges[:, 1] - section.ranges[:, 0]
        return [(section.blocks[one].part, n) for one, n in zip(section.holders, lengths.tolist(), strict=True)]

    assert mixer.next_part == 0
    assert add(0, 5, [0], mid=True) == [(0, 5)]
    assert mixer.next_part == 0
    assert add(1, 4, [0, 1]) == []  # the first document of part 0 has the same key and comes first
    assert mixer.next_part == 0
    assert add(0, 3, []) == [(0, 3), (1, 4)]  # 8 of part 0; of part 1 all that is known
    assert mixer.known_tokens == [8, 4]
    assert mixer.next_part == 1
    assert add(0, 2, [0]) == []
    assert mixer.next_part == 1
    assert add(1, 20, [0, 12]) == [(1, 12), (0, 2), (1, 8)]  # keys 4 / 2, 8 / 1 (part 0 first) and 16 / 2
    assert mixer.next_part == 0


def test_no_run_begins_in_a_document_that_is_left_out() -> None:
    """A part may stop in one while a checkpoint comes with a token of another part: its cursor is then before it, and
    its counts come with the token after it. The checkpoint that ends validation is such a place, too."""
    two = PartInput(((2, 30, 2), (6, 0)), 1, limits=LengthLimits(0, 5)), PartInput(((0, 0),), 1)
    builds = [
        Build(two, "all-exhausted", True, 5),
        Build(two, "all-exhausted", False, 5),
        Build(two[:1], "first-exhausted", True, 100, SplitRule(val_documents=1)),
        Build(two[:1], "first-exhausted", False, 100, SplitRule(val_documents=1)),
    ]
    generator = random.Random(0)
    for build, first, second, only_some in itertools.product(builds, [1, 3, 5], [0, 2, 4], [False, True]):
        for _ in range(3):
            check_build(build, [first, second, 0, 8], [7], only_some, False, generator)


def test_an_empty_block_is_no_way_out_of_a_document_that_is_left_out() -> None:
    """No run may begin after it, if a checkpoint comes while the part waits there."""
    inside = Cursor(0, 5, starts_mid_document=True)
    nothing = np.empty((0, 2), np.int64)
    left_out = TokenBlock(Cursor(0, 0), Cursor(0, 0, 5), HeldTokens(0, 0, 5), np.array([0]), Counts(), nothing)
    empty = TokenBlock(Cursor(0, 0, 5), inside, HeldTokens(0, 1, 0), np.array([], np.int64), Counts(text_bytes=5))
    other = TokenBlock(Cursor(0, 0), Cursor(0, 1), HeldTokens(1, 0, 4), np.array([0]), Counts(), part=1)
    rest = TokenBlock(inside, Cursor(0, 9), HeldTokens(2, 0, 4), np.array([2]), Counts(), np.array([[2, 4]]))
    packer = Packer(4, starts=(Cursor(0, 0),) * 2, taken=(Taken(),) * 2)
    slices = [one for block in (left_out, empty, other, rest) for one in packer.pack(Section.of(block))]
    (checkpoint,) = [one for one in slices if one.checkpoint]
    assert checkpoint.end == (Cursor(0, 0, 5), Cursor(0, 1))
    assert [one.counts.text_bytes for one in slices] == [0, 0, 0, 5]
    assert slices[-1].end == (Cursor(0, 9), Cursor(0, 1))


@pytest.mark.parametrize("eot_first", [True, False])
def test_files_for_validation_come_first_and_do_not_count(eot_first: bool) -> None:
    """A part may have no others, or none that are left when a run resumes; and a run may begin in the middle of a
    document of such a file."""
    parts = PartInput(((5, 3),), 1, 1), PartInput(((4, 8), (2, 6, 1)), 2, 1), PartInput(((), (9, 9)), 1, 1)
    rule = SplitRule(val_files=(1, 1, 1))
    generator = random.Random(0)
    for until, shard_tokens, sizes in itertools.product(
        ["first-exhausted", "all-exhausted"], [4, 50], [[2], [3, 0, 4]]
    ):
        for some in (parts, parts[1:]):
            build = Build(some, until, eot_first, shard_tokens, replace(rule, val_files=(1,) * len(some)))
            check_build(build, sizes, [1, 2], False, generator.random() < 0.5, generator)
