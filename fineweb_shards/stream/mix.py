"""Order the documents of several parts by tokens: the part furthest behind its share is always next. No I/O.

Part i has the weight w_i, and t_i of its tokens have been taken, EOTs included. The next document comes from the part
with the smallest t_i / w_i; ties go to the first part. So a document's *key* is the number of tokens of its part before
it, divided by the weight, and the stream is all documents sorted by (key, number of the part). This is known as
start-time fair queueing.

A part is ahead of its share by less than one of its own documents, and behind it by at most its share of one document
of each other part; the proof is in docs/architecture.md.

Whole blocks are ordered at once: known documents are sorted up to the *horizon*, the smallest key that an unknown
document can have, because nothing can come before smaller keys. The part at the horizon is the one to wait for
(`next_part`). A document longer than its block is passed on in pieces that all have its key, and the horizon of its
part stays at that key until its end is known.

The order depends only on the documents and the weights, not on the sizes of blocks or the order of their arrival. To
resume, each part's cursor and t_i are enough. At most one part can be in the middle of a document there: it was being
taken, and continues before all others.

Weights may be any positive numbers; they are scaled exactly to integers before any comparison.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import UsageError
from fineweb_shards.stream.section import NO_POSITIONS, Section, cut_ranges, kept_ranges
from fineweb_shards.types import Cursors, Positions, TokenBlock

MOST_WEIGHT = 10**6
# When the stream ends; as in `datasets.interleave_datasets`.
FIRST_EXHAUSTED, ALL_EXHAUSTED = "first-exhausted", "all-exhausted"
# Different keys differ by at least 1 / w_i w_j, which is more than 2^-40. So their integer parts and 40 bits of the
# fractions, rounded down, compare as the keys do. Integer parts are counted from the smallest, and have the other bits.
_FRACTION_BITS = 40
_INTEGER_LIMIT = 1 << 62 - _FRACTION_BITS
# Of pieces: begins, ends, keys, whether they have an EOT, and the numbers of their blocks.
_Columns = tuple[Positions, Positions, Positions, NDArray[np.bool_], Positions]
_BEFORE_ALL = -1  # stands for the tokens before a document in whose middle a run may begin


@dataclass(frozen=True, slots=True)
class MixRule:
    """Weights without a common divisor. With `until_all` the stream continues when a part runs out."""

    weights: tuple[int, ...]
    until_all: bool = False

    def shares(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(weight, sum(self.weights)) for weight in self.weights)


@dataclass(slots=True)
class _Pieces:
    """The kept parts of a block, one piece per document."""

    block: TokenBlock
    begins: Positions
    ends: Positions
    before: Positions  # for each piece, tokens of the part before its document: its key times the weight
    has_eot: NDArray[np.bool_]
    taken: int = 0  # pieces

    @property
    def is_finished(self) -> bool:
        return self.taken == len(self.before)


@dataclass(slots=True)
class _Queue:
    """The documents of one part that are known but not taken."""

    weight: int
    eot_first: bool
    tokens: int  # known, including those that earlier runs took
    # Tokens before the last document, if it may continue in the next block; None: the next kept token begins one.
    open_before: int | None
    mid_document: bool  # with EOT last: whether the next token, kept or not, continues a document
    ended: bool = False
    waiting: deque[_Pieces] = field(default_factory=deque)

    @property
    def horizon(self) -> int:
        """The smallest key, times the weight, that a token of the next block can have."""
        return self.tokens if self.open_before is None else self.open_before

    def first(self) -> int | None:
        """Return the integer part of the smallest key not taken."""
        return next((int(one.before[one.taken]) // self.weight for one in self.waiting if not one.is_finished), None)

    def add(self, block: TokenBlock) -> None:
        length, eots = len(block.tokens), block.eots
        starts = eots if self.eot_first else eots + 1
        begins, ends = cut_ranges(kept_ranges(block), starts).T
        lengths = ends - begins
        before = self.tokens + np.cumsum(lengths) - lengths
        has_eot = np.ones(len(begins), np.bool_)
        was_mid_document = self.mid_document
        if length:
            self.mid_document = length - 1 not in eots[-1:]
        if len(begins):
            begin = int(begins[0])
            continues = begin not in starts and (self.eot_first or begin > 0 or was_mid_document)
            if continues:
                assert self.open_before is not None, "a document that has ended continues"
                before[0] = self.open_before
            is_open = int(ends[-1]) == length and (block.ends_mid_document if self.eot_first else self.mid_document)
            self.open_before = int(before[-1]) if is_open else None
            # Only the first or last piece may lack its document's EOT.
            if self.eot_first:
                has_eot[0] = not continues
            else:
                has_eot[-1] = not is_open
            self.tokens += int(lengths.sum())
        if block.ends_part:
            self.ended, self.open_before = True, None
        self.waiting.append(_Pieces(block, begins, ends, before, has_eot))

    def take(self, most: int) -> Iterator[tuple[_Pieces, slice]]:
        """Yield the next blocks with the pieces whose documents have at most `most` tokens before them."""
        while self.waiting:
            one = self.waiting[0]
            begin, one.taken = one.taken, int(np.searchsorted(one.before, most, side="right"))
            if begin < one.taken or one.is_finished:
                yield one, slice(begin, one.taken)
            if not one.is_finished:
                return
            self.waiting.popleft()


class Mixer:
    """Takes blocks of all parts in any order (`add`) and returns their documents in the order of the mix (`take`).

    It begins at `starts`, after `taken` tokens of each part. The first `val_files` files of each part are for
    validation: they come first, part by part, and are not counted."""

    def __init__(
        self, rule: MixRule, starts: Cursors, taken: Sequence[int], *, eot_first: bool, val_files: Sequence[int] = ()
    ) -> None:
        self._rule, self._eot_first = rule, eot_first
        self._val_files = val_files or (0,) * len(starts)
        # The validation blocks of each part that has any left, and the parts for which these are complete.
        self._validation: dict[int, deque[TokenBlock]] = {}
        self._val_ended: set[int] = set()
        self._queues: list[_Queue] = []
        for part, (weight, tokens, start) in enumerate(zip(rule.weights, taken, starts, strict=True)):
            mid_document, may_be_mid = start.starts_mid_document, start.starts_mid_document or start.skip_tokens > 0
            if start.file < self._val_files[part]:
                self._validation[part] = deque()
                mid_document = may_be_mid = False
            open_before = _BEFORE_ALL if may_be_mid else None
            self._queues.append(_Queue(weight, eot_first, tokens, open_before, mid_document))
        self.ended = False  # the stream

    @property
    def next_part(self) -> int:
        """The part whose next block is needed when `take` returns None before the stream has ended."""
        return next((part for part in self._validation if part not in self._val_ended), self._lowest())

    @property
    def known_tokens(self) -> list[int]:
        """How many tokens of each part are known, including those taken."""
        return [queue.tokens for queue in self._queues]

    def add(self, block: TokenBlock) -> None:
        part = block.part
        if part in self._validation and block.start.file < self._val_files[part] and not block.ends_part:
            self._validation[part].append(block)
        else:
            self._val_ended.add(part)
            self._queues[part].add(block)

    def take(self) -> Section | None:
        """Return the next documents in order; None if more blocks are needed, or the stream has ended."""
        while self._validation:
            part, blocks = next(iter(self._validation.items()))
            if blocks:
                return Section.of(blocks.popleft())
            if part not in self._val_ended:
                return None
            del self._validation[part]
        return None if self.ended else self._take()

    def _lowest(self) -> int:
        """Return the part with the lowest horizon. Where a part that ends also ends the stream, its end counts too."""
        waited_for = [part for part, queue in enumerate(self._queues) if not (queue.ended and self._rule.until_all)]
        return min(
            waited_for or range(len(self._queues)),
            key=lambda part: (Fraction(self._queues[part].horizon, self._queues[part].weight), part),
        )

    def _take(self) -> Section | None:
        queues, number = self._queues, self._lowest()
        lowest = queues[number]
        all_ended = self._rule.until_all and lowest.ended
        firsts = [first for queue in queues if (first := queue.first()) is not None]
        first = min(firsts, default=0)
        is_all = True
        blocks: list[TokenBlock] = []
        finished: list[tuple[int, int]] = []  # (last piece of the part or -1, block)
        columns: list[_Columns] = [(NO_POSITIONS, NO_POSITIONS, NO_POSITIONS, np.empty(0, np.bool_), NO_POSITIONS)]
        count = 0  # pieces
        for part, queue in enumerate(queues):
            most = queue.tokens
            if not all_ended:
                # Up to the horizon; in parts after the lowest one, equal keys come later.
                most = min(most, (lowest.horizon * queue.weight - (part > number)) // lowest.weight)
            sortable = (first + _INTEGER_LIMIT) * queue.weight - 1
            if firsts and most > sortable:
                most, is_all = sortable, False
            last = -1
            for one, which in queue.take(most):
                if which.start < which.stop:
                    whole, rest = np.divmod(one.before[which], queue.weight)
                    keys = (whole - first << _FRACTION_BITS) + (rest << _FRACTION_BITS) // queue.weight
                    holders = np.full(len(keys), len(blocks))
                    columns.append((one.begins[which], one.ends[which], keys, one.has_eot[which], holders))
                    count += len(keys)
                    last = count - 1
                if one.is_finished:
                    finished.append((last, len(blocks)))
                blocks.append(one.block)
        self.ended = is_all and lowest.ended
        return _join_pieces(blocks, columns, finished, eot_first=self._eot_first) if blocks else None


def _join_pieces(
    blocks: Sequence[TokenBlock], columns: Sequence[_Columns], finished: Iterable[tuple[int, int]], *, eot_first: bool
) -> Section:
    """Return the section of all pieces, sorted by their keys."""
    begins, ends, keys, has_eot, holders = (np.concatenate(column) for column in zip(*columns, strict=True))
    # The pieces are grouped by part, so a stable sort keeps those of earlier parts first among equal keys.
    order = np.argsort(keys, kind="stable")
    begins, ends, has_eot, holders = begins[order], ends[order], has_eot[order], holders[order]
    lengths = ends - begins
    after = np.cumsum(lengths)  # tokens up to the end of each piece
    begun = after - lengths
    after_of = np.zeros(len(order) + 1, np.int64)  # the same in the order of columns, and 0 for -1
    after_of[order] = after
    is_first = np.ones(len(begins), np.bool_)  # of a range: adjacent pieces of a block are joined
    is_first[1:] = (holders[1:] != holders[:-1]) | (begins[1:] != ends[:-1])
    return Section(
        tuple(blocks),
        np.stack([begins[is_first], ends[np.roll(is_first, -1)]], axis=1),
        holders[is_first],
        begun[is_first],
        int(lengths.sum()),
        begun[has_eot] if eot_first else after[has_eot] - 1,
        tuple(sorted((int(after_of[last]), holder) for last, holder in finished)),
    )


def mix(blocks: Iterable[TokenBlock], mixer: Mixer) -> Iterator[Section]:
    """Yield the sections of a mix until the blocks or the mix end."""
    for block in blocks:
        mixer.add(block)
        while (section := mixer.take()) is not None:
            yield section
        if mixer.ended:
            return


Weight = Fraction | int | float


def whole_weights(weights: Sequence[Weight | None]) -> list[int]:
    """Return weights as integers without a common divisor; empty unless every part has one."""
    given = [Fraction(str(one)) for one in weights if one is not None]  # a float is what its repr says
    if not any(given) or len(given) < len(weights):
        return []
    scale = Fraction(math.lcm(*(one.denominator for one in given)))
    scale /= math.gcd(*(int(one * scale) for one in given))
    return [int(one * scale) for one in given]


def check_weights(weights: Mapping[int, Weight | None], whole: Sequence[int], mix_until: str | None) -> None:
    """Raise UsageError for weights, by number of the part and as `whole` numbers, that can't work."""
    given = {number: Fraction(str(one)) for number, one in weights.items() if one is not None}
    if not given:
        if mix_until is not None:
            raise UsageError(
                f"--mix-until {mix_until}: no part has a weight, so nothing is mixed.",
                "Give each part one, such as --part 'dataset=ORG/NAME weight=7', or leave --mix-until out.",
            )
        return
    shown = {number: f"--weight {float(one):.12g}" for number, one in given.items()}
    if len(weights) == 1:
        raise UsageError(
            f"{shown[1]}: there is nothing to mix, because the input has only one part.",
            "Name the others, each with its weight, as in --part 'dataset=ORG/NAME weight=3', or leave it out.",
        )
    for number in weights:
        if number not in given:
            first = next(iter(given))
            raise UsageError(
                f"Part {number} has no weight, but part {first} has {shown[first]}.",
                "Give every part a weight, to mix them, or none, to read them one after the other.",
            )
        if given[number] <= 0:
            raise UsageError(
                f"Part {number}: {shown[number]}: must be more than 0.",
                "Leave the part out if you want nothing from it.",
            )
    least, most = min(given, key=given.__getitem__), max(given, key=given.__getitem__)
    if given[most] > MOST_WEIGHT * given[least]:
        raise UsageError(
            f"Part {least}: {shown[least]}: part {most} has more than a million times as much, {shown[most]}.",
            "Choose weights that are closer to each other, or leave the part out.",
        )
    if max(whole) > MOST_WEIGHT:
        raise UsageError(
            f"Part {most}: {shown[most]}: scaled with the others to whole numbers it is {max(whole):,}, but at most "
            f"{MOST_WEIGHT:,} is possible.",
            "Round the weights, for example to three digits.",
        )
