"""Order the documents of several parts by tokens: always the next one of the part that is furthest behind. No I/O.

Part i has the weight w_i, and t_i of its tokens were taken so far, EOTs included. The next document comes from the part
with the smallest t_i / w_i, of equal ones from the first. So a document's *key* is the tokens of its part before it,
divided by the weight, and the stream is all documents sorted by (key, number of the part).

**No part is off its share by more than one of its documents.** Let a document of part i with the key k have been taken
last, and j be any part. What it took before its last document was taken at a key of at most k, as keys only grow, so
t_j less that document is at most w_j k. And its next document was not taken yet, so t_j is at least w_j k. So t_j / w_j
is between k and k plus one document of part j over w_j, for every part, and in the middle of a document as well.

Whole blocks are ordered at once: what is known of every part is sorted up to the *horizon*, which is the smallest key
of a document that is not known yet. Whatever has a smaller key can't be overtaken any more. The part at the horizon is
the one to wait for (`next_part`). A document that is longer than its block is passed on piece by piece: all its pieces
have its key, and the horizon stays there until its end is known.

The order is a function of the documents and the weights alone: neither the sizes of blocks nor the order in which they
arrive changes it. What a run needs to continue is each part's cursor and t_i. If it begins in the middle of a document,
that one was being taken, and goes on first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.stream.section import Section, is_safe_end
from fineweb_shards.types import Cursors, Positions, TokenBlock

MOST_WEIGHT = 10**6
# When the stream ends; as in `datasets.interleave_datasets`.
FIRST_EXHAUSTED, ALL_EXHAUSTED = "first-exhausted", "all-exhausted"
# Two keys that differ do so by at least 1/w_i w_j, which is more than 2^-40: so 40 bits of the fraction, rounded down,
# decide as the fractions do. The whole part, counted from the smallest, has the bits above them.
_FRACTION_BITS = 40
_MOST_WHOLE = 1 << 62 - _FRACTION_BITS
_BEFORE_ALL = -1  # the tokens before the rest of a document with which a run begins


@dataclass(frozen=True, slots=True)
class MixRule:
    """The weights of the parts, as integers without a common divisor; `until_all`: a part that has run out does not end
    the stream."""

    weights: tuple[int, ...]
    until_all: bool = False

    def shares(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(weight, sum(self.weights)) for weight in self.weights)


@dataclass(slots=True)
class _Pieces:
    """The kept tokens of a block, a piece for each document."""

    block: TokenBlock
    begins: Positions
    ends: Positions
    keys: Positions  # the tokens of the part before the document that a piece belongs to
    has_eot: NDArray[np.bool_]
    done: int = 0  # pieces that are passed on

    @property
    def last_end(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


@dataclass(slots=True)
class _Part:
    """What is known of one part, and not passed on."""

    weight: int
    eot_first: bool
    tokens: int  # all that are known, those taken by earlier runs included
    begun: bool  # it is known whether it begins in the middle of a document
    open_key: int | None = None  # of the last document, whose end is not known; None: it has ended
    mid_document: bool = False  # its last token is not the end of a document: with EOT last
    ended: bool = False
    waiting: deque[_Pieces] = field(default_factory=deque)
    # Blocks that are passed on, whose end must not be a cursor: see `is_safe_end`.
    unsafe: list[TokenBlock] = field(default_factory=list)

    @property
    def horizon(self) -> int:
        """The key up to which everything is known."""
        if not self.begun:
            return _BEFORE_ALL
        return self.tokens if self.open_key is None else self.open_key

    def add(self, block: TokenBlock) -> None:
        if block.ends_part:
            self.ended, self.begun, self.open_key = True, True, None
        pieces = self._divide(block)
        self.waiting.append(pieces)
        length = len(block.tokens)
        if not length:
            return
        if len(pieces.begins):
            self.begun = True
            self.tokens += int((pieces.ends - pieces.begins).sum())
        last_is_eot = len(block.eots) > 0 and int(block.eots[-1]) == length - 1
        self.mid_document = not last_is_eot
        goes_on = block.ends_mid_document if self.eot_first else not last_is_eot
        self.open_key = int(pieces.keys[-1]) if goes_on and pieces.last_end == length else None

    def _divide(self, block: TokenBlock) -> _Pieces:
        length, eots = len(block.tokens), block.eots
        ranges = np.array([(0, length)] if length else [], np.int64) if block.kept is None else block.kept
        begins, ends = ranges.reshape(-1, 2).T
        cuts = eots if self.eot_first else eots + 1
        holder = np.searchsorted(ends, cuts, side="right")
        inside = holder < len(ends)
        inside[inside] &= begins[holder[inside]] < cuts[inside]
        edges = np.sort(np.concatenate([begins, ends, cuts[inside], cuts[inside]]), kind="stable")
        begins, ends = edges[::2], edges[1::2]
        has_eot = _is_in(begins if self.eot_first else ends - 1, eots)
        keys = self.tokens + np.cumsum(ends - begins) - (ends - begins)
        if len(begins):
            first = int(begins[0])
            if self.eot_first:
                goes_on = not has_eot[0]
            else:
                goes_on = not _is_in(begins[:1] - 1, eots)[0] if first else self.mid_document
            if goes_on:
                keys[0] = _BEFORE_ALL if self.open_key is None else self.open_key
        return _Pieces(block, begins, ends, keys, has_eot)


def _is_in(places: Positions, eots: Positions) -> NDArray[np.bool_]:
    """Return for each place whether an EOT is there."""
    if not len(eots):
        return np.zeros(len(places), bool)
    found = np.searchsorted(eots, places).clip(max=len(eots) - 1)
    return np.equal(eots[found], places)


class Mixer:
    """Takes blocks of all parts in any order (`add`) and passes their documents on in the order of the mix (`take`).

    It begins at `starts`, after it has taken `taken` tokens of each part. The first `val_files` files of the parts are
    for validation; they come first, one part after the other, and don't count."""

    def __init__(
        self,
        rule: MixRule,
        starts: Cursors,
        taken: Sequence[int],
        *,
        eot_first: bool,
        val_files: Sequence[int] = (),
    ) -> None:
        self._rule = rule
        self._eot_first = eot_first
        self._val_files = val_files or (0,) * len(starts)
        self._parts = [
            _Part(
                weight,
                eot_first,
                tokens,
                begun=not (start.skip_tokens or start.starts_mid_document),
                mid_document=start.starts_mid_document,
            )
            for weight, tokens, start in zip(rule.weights, taken, starts, strict=True)
        ]
        # Of each part whose files for validation are not all passed on: their blocks, and whether these are all.
        self._validation: dict[int, deque[TokenBlock]] = {
            part: deque()
            for part, (start, files) in enumerate(zip(starts, self._val_files, strict=True))
            if start.file < files
        }
        for part in self._validation:
            self._parts[part].begun = True
        self._val_ended: set[int] = set()
        self.ended = False  # a part that ends the stream has run out

    @property
    def next_part(self) -> int:
        """The part whose next block is waited for."""
        for part in self._validation:
            if part not in self._val_ended:
                return part
        return self._lowest()

    @property
    def known_tokens(self) -> list[int]:
        """How many tokens of each part are known."""
        return [part.tokens for part in self._parts]

    def has_ended(self, part: int) -> bool:
        return self._parts[part].ended

    def add(self, block: TokenBlock) -> None:
        if block.part in self._validation and block.start.file < self._val_files[block.part] and not block.ends_part:
            self._validation[block.part].append(block)
            return
        self._val_ended.add(block.part)
        self._parts[block.part].add(block)

    def take(self) -> Section | None:
        """Return the next documents of which the order is known; None if there are none."""
        while self._validation:
            part, blocks = next(iter(self._validation.items()))
            if blocks:
                return Section.of(blocks.popleft())
            if part not in self._val_ended:
                return None
            del self._validation[part]
        if self.ended:
            return None
        return self._take()

    def _lowest(self) -> int:
        """Return the part whose horizon is the lowest: the end of one that has run out counts if it ends the stream."""
        counted = [number for number, part in enumerate(self._parts) if not (part.ended and self._rule.until_all)]
        return min(
            counted or [0],
            key=lambda number: (Fraction(self._parts[number].horizon, self._parts[number].weight), number),
        )

    def _take(self) -> Section | None:
        parts, lowest = self._parts, self._lowest()
        horizon, weight = parts[lowest].horizon, parts[lowest].weight
        all_ended = self._rule.until_all and all(part.ended for part in parts)
        pending = [int(one.keys[one.done]) // part.weight for part in parts for one in part.waiting
                   if one.done < len(one.keys)]  # fmt: skip
        first = min(pending, default=0)
        chosen, is_all = _Chosen(first, eot_first=self._eot_first), True
        for number, part in enumerate(parts):
            # Up to the horizon; of parts after the lowest one, what has the same key comes later.
            most = horizon * part.weight // weight if number <= lowest else (horizon * part.weight - 1) // weight
            if all_ended:
                most = part.tokens
            sortable = (first + _MOST_WHOLE) * part.weight - 1
            if pending and most > sortable:
                most, is_all = sortable, False
            chosen.add(part, most)
        self.ended = is_all and not all_ended and parts[lowest].ended
        return chosen.section()


class _Chosen:
    """The pieces that are passed on together, and the blocks that are behind with them. `first` is the whole part of
    the smallest key."""

    def __init__(self, first: int, *, eot_first: bool) -> None:
        self._first = first
        self._eot_first = eot_first
        self._blocks: list[TokenBlock] = []
        self._columns: list[tuple[Positions, ...]] = []  # begin, end, sortable key, EOT, block: of each piece
        self._count = 0
        self._finished: set[int] = set()
        # Blocks that are behind: after the piece of this number (None: before all), or with its first token.
        self._after: list[tuple[int | None, int]] = []
        self._with: list[tuple[int, int]] = []

    def add(self, part: _Part, most: int) -> None:
        """Move the pieces of a part with keys up to `most`, and the blocks that have no others."""
        last: int | None = None
        while part.waiting:
            one = part.waiting[0]
            stop = max(one.done, int(np.searchsorted(one.keys, most, side="right")))
            if one.done == stop < len(one.keys):
                return
            if one.done < stop:
                self._with += [(self._count, self._number(block)) for block in part.unsafe]
                part.unsafe.clear()
            elif one.block.ends_part:
                self._after += [(last, self._number(block)) for block in part.unsafe]
                part.unsafe.clear()
            holder = self._number(one.block)
            if one.done < stop:
                self._add_pieces(one, stop, part.weight, holder)
                last = self._count - 1
            if stop < len(one.keys):
                return
            part.waiting.popleft()
            self._finished.add(holder)
            if is_safe_end(one.block, one.last_end):
                self._after.append((last, holder))
            else:
                part.unsafe.append(one.block)

    def _number(self, block: TokenBlock) -> int:
        self._blocks.append(block)
        return len(self._blocks) - 1

    def _add_pieces(self, one: _Pieces, stop: int, weight: int, holder: int) -> None:
        chosen = slice(one.done, stop)
        keys = one.keys[chosen]
        sortable = (keys // weight - self._first << _FRACTION_BITS) + (keys % weight << _FRACTION_BITS) // weight
        columns = one.begins[chosen], one.ends[chosen], sortable, one.has_eot[chosen], np.full(len(keys), holder)
        self._columns.append(columns)
        self._count += stop - one.done
        one.done = stop

    def section(self) -> Section | None:
        """Return them in their order; None if there is nothing."""
        if not self._blocks:
            return None
        nothing = np.empty(0, np.int64)
        columns = zip(*self._columns, strict=True) if self._columns else [(nothing,)] * 5
        begins, ends, keys, has_eot, holders = (np.concatenate(column) for column in columns)
        # One part after the other, each sorted: of equal keys the first part's stays in front.
        order = np.argsort(keys, kind="stable")
        begins, ends, has_eot, holders = begins[order], ends[order], has_eot[order].astype(bool), holders[order]
        before = np.cumsum(ends - begins) - (ends - begins)  # tokens before each piece
        after = before + ends - begins
        numbers = np.empty_like(order)
        numbers[order] = np.arange(len(order))
        behind = [(0 if piece is None else int(after[numbers[piece]]), holder) for piece, holder in self._after]
        behind += [(int(before[numbers[piece]]) + 1, holder) for piece, holder in self._with]
        is_first = np.ones(len(begins), bool)  # of a range: neighbours in a block are one
        is_first[1:] = (holders[1:] != holders[:-1]) | (begins[1:] != ends[:-1])
        return Section(
            tuple(self._blocks),
            np.stack([begins[is_first], ends[np.roll(is_first, -1)]], axis=1),
            holders[is_first],
            before[is_first],
            int(after[-1]) if len(after) else 0,
            before[has_eot] if self._eot_first else after[has_eot] - 1,
            tuple(sorted(behind)),
            frozenset(self._finished),
        )


def mix(blocks: Iterable[TokenBlock], mixer: Mixer) -> Iterator[Section]:
    """Yield the sections of a mix as far as the blocks allow; it ends with them, or when a part ends it."""
    for block in blocks:
        mixer.add(block)
        while (section := mixer.take()) is not None:
            yield section
        if mixer.ended:
            return
