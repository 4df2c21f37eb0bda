"""Cut token blocks, in the order of the stream, into slices of shards for the two splits. No I/O.

Only lengths and the positions of EOTs are needed for it: the tokens themselves may be elsewhere.

A *checkpoint* is a place in the stream at which the manifest is saved: wherever a segment of `shard_tokens` tokens is
full, in either split, and where validation ends if it is the beginning of the stream. Both splits have then been packed
up to the same place in the stream, so that the same cursors, one for each part of the input, are valid for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import (
    SPLITS,
    Counts,
    Cursor,
    Cursors,
    Positions,
    Ranges,
    ShardSlice,
    Split,
    TokenBlock,
)

_BEGINNING = (Cursor(0, 0),)  # of an input of one part
_NO_RANGES: Ranges = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class PackedTotals:
    """What the manifest already records: the tokens of each split, and the EOTs of both together."""

    val_tokens: int = 0
    train_tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class RetainedTokens:
    """The tokens of a block that are kept, numbered from 0. The packer counts these; placements and cursors need their
    places in the block."""

    tokens: int
    eots: Positions  # the numbers of those that are EOTs
    _ranges: Ranges | None  # their places; None: all
    _firsts: Positions  # the number of the first token of each range

    @classmethod
    def of(cls, block: TokenBlock) -> RetainedTokens:
        """Number the kept tokens of a block."""
        ranges = block.kept
        if ranges is None:
            return cls(len(block.tokens), block.eots, None, block.eots[:0])
        lengths = ranges[:, 1] - ranges[:, 0]
        firsts = np.cumsum(lengths) - lengths
        holder = np.searchsorted(ranges[:, 1], block.eots, side="right")  # the range that an EOT would be in
        eots, holder = block.eots[holder < len(ranges)], holder[holder < len(ranges)]
        offsets = eots - ranges[holder, 0]
        inside = offsets >= 0
        return cls(int(lengths.sum()), (firsts[holder] + offsets)[inside], ranges, firsts)

    def count_before(self, place: int) -> int:
        """Return how many kept tokens are in front of a place in the block."""
        if self._ranges is None:
            return place
        begins, ends = self._ranges.T
        return int((np.minimum(ends, place) - begins).clip(0).sum())

    def place_after(self, number: int) -> int:
        """Return the place right after the first `number` kept tokens; that of none is the block's start."""
        if self._ranges is None or not number:
            return number
        last = int(np.searchsorted(self._firsts, number)) - 1  # the range that has the last of them
        return int(self._ranges[last, 0] + number - self._firsts[last])

    def places_of(self, numbers: Ranges) -> Ranges:
        """Return where ranges of kept tokens are in the block; one range may become several."""
        if self._ranges is None or not len(numbers):
            return numbers
        # Cut the ranges wherever tokens are left out between two neighbours.
        begins, ends = numbers.T
        cuts = self._firsts[1:]
        holder = np.searchsorted(ends, cuts, side="right")
        inside = holder < len(numbers)
        inside[inside] &= begins[holder[inside]] < cuts[inside]
        edges = np.sort(np.concatenate([begins, ends, cuts[inside], cuts[inside]])).reshape(-1, 2)
        last = np.searchsorted(self._firsts, edges[:, 0], side="right") - 1
        places: Ranges = edges + (self._ranges[last, 0] - self._firsts[last])[:, None]
        return places


@dataclass(frozen=True, slots=True)
class _Part:
    """Ranges of a block for one split, and the number of tokens and EOTs in them."""

    split: Split
    ranges: Ranges
    tokens: int
    documents: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The next `length` tokens of the stream by split; if one fills a segment (`full`), it comes last."""

    length: int
    parts: tuple[_Part, ...]
    full: bool = False


class Packer:
    """Cuts each split every `shard_tokens` tokens, and ends the stream after `max_tokens`. It begins at `starts`: the
    `skip_tokens` of each part are dropped, because the manifest has them.

    With `one_file` a split is one file that grows: it is only full once no more tokens can follow, which for validation
    is where training begins.
    """

    def __init__(
        self,
        shard_tokens: int,
        *,
        split_rule: SplitRule | None = None,
        one_file: bool = False,
        eot_first: bool = True,
        done: PackedTotals | None = None,
        starts: Cursors = _BEGINNING,
        max_tokens: int | None = None,
    ) -> None:
        done = done or PackedTotals()
        self._shard_tokens = shard_tokens
        self._split_rule = split_rule or SplitRule()
        self._one_file = one_file
        self._eot_first = eot_first
        self._tokens: dict[Split, int] = {"val": done.val_tokens, "train": done.train_tokens}
        self._documents = done.documents
        self._places = list(starts)  # what of each part is packed
        self._skip_tokens = [start.skip_tokens for start in starts]  # still to drop of each part
        self.left_tokens = max_tokens  # still to pack; None: no limit
        # Whether validation is the beginning of the stream and its last file is not finished. If a run begins right
        # after what such a file has, nobody has opened it yet: it is finished with the stream.
        self._val_is_open = False

    @property
    def first_segment_tokens(self) -> int:
        """How many tokens are packed, if all are for validation and do not fill a segment; else 0."""
        val = self._tokens["val"]
        return 0 if self._tokens["train"] or val >= self._shard_tokens else val

    @property
    def ended(self) -> bool:
        """Whether `max_tokens` are packed."""
        return self.left_tokens == 0

    def pack(self, block: TokenBlock) -> Iterator[ShardSlice]:
        """Yield the slices that a block is cut into; tokens after `max_tokens` are dropped."""
        skipped = min(self._skip_tokens[block.part], len(block.tokens))
        self._skip_tokens[block.part] -= skipped
        kept, in_order = RetainedTokens.of(block), self._split_rule.is_in_order
        position, at_end = kept.count_before(skipped), False
        while position < kept.tokens and not self.ended:
            piece = self._next_piece(kept, position, block)
            if self._val_is_open and piece.parts[0].split == "train":
                # Without a token: where the last document or input file for validation ends is only known when the next
                # one begins.
                end = self._move(block.part, block.start.after(kept.place_after(position)))
                yield ShardSlice(_NO_RANGES, 0, 0, Counts(), end, "val", checkpoint=True, fills_shard=True)
            position += piece.length
            place = kept.place_after(position)
            at_end = place == len(block.tokens)
            self._documents += sum(part.documents for part in piece.parts)
            if self.left_tokens is not None:
                self.left_tokens -= piece.length
            end = self._move(block.part, block.end if at_end else block.start.after(place))
            for number, part in enumerate(piece.parts, 1):
                self._tokens[part.split] += part.tokens
                last = number == len(piece.parts)
                fills_shard = last and piece.full and not self._one_file
                self._val_is_open = in_order and part.split == "val" and not fills_shard
                yield ShardSlice(
                    kept.places_of(part.ranges),
                    part.tokens,
                    part.documents,
                    block.counts if last and at_end else Counts(),
                    end,
                    part.split,
                    checkpoint=last and piece.full,
                    fills_shard=fills_shard,
                )
        if position == kept.tokens and not at_end:  # no new tokens, but perhaps new counts
            # All of a block may be skipped, if an earlier run had larger ones: then there is more to skip.
            end = self._move(block.part, block.end.after(self._skip_tokens[block.part]))
            yield ShardSlice(_NO_RANGES, 0, 0, block.counts, end)

    def _move(self, part: int, place: Cursor) -> Cursors:
        """Note how far a part is packed; return the place in the stream."""
        self._places[part] = place
        return tuple(self._places)

    def _left_in_segment(self, split: Split) -> int:
        """Return how many tokens fit into the current segment of a split."""
        return self._shard_tokens - self._tokens[split] % self._shard_tokens

    def _training_start(self, kept: RetainedTokens, start: int, block: TokenBlock) -> int:
        """Return where in the kept tokens of a block training begins, from `start` on; their end if it does not begin
        in it. For rules by which validation is the beginning of the stream."""
        rule = self._split_rule
        if rule.val_files:
            return kept.tokens if block.start.file < rule.val_files[block.part] else start
        if not rule.val_documents:
            return min(kept.tokens, start + max(0, rule.val_tokens - self._tokens["val"]))
        # The EOT between the two splits: the first of training, or the last of validation.
        first = int(np.searchsorted(kept.eots, start))
        boundary = first + rule.val_documents - self._documents - (not self._eot_first)
        if boundary < first:
            return start
        return int(kept.eots[boundary]) + (not self._eot_first) if boundary < len(kept.eots) else kept.tokens

    def _next_piece(self, kept: RetainedTokens, start: int, block: TokenBlock) -> _Piece:
        """Return the kept tokens of a block from `start` up to the end of the first full segment, of validation, of the
        block or of the stream."""
        rule, stop = self._split_rule, kept.tokens
        if self.left_tokens is not None:
            stop = min(stop, start + self.left_tokens)
        if rule.is_in_order:
            boundary = self._training_start(kept, start, block)
            if start < boundary:
                return self._one_split("val", kept, start, min(stop, boundary))
            return self._one_split("train", kept, start, stop)
        first, last = np.searchsorted(kept.eots, (start, stop))
        eots = kept.eots[first:last] - start
        chosen = rule.ranges(eots, stop - start, self._documents, eot_first=self._eot_first)
        if not len(chosen):
            return self._one_split("train", kept, start, stop)
        return self._both_splits(start, stop - start, eots, chosen)

    def _one_split(self, split: Split, block: RetainedTokens, start: int, stop: int) -> _Piece:
        """Return the next piece if all its tokens belong to one split."""
        left = self._left_in_segment(split)
        end = min(stop, start + left)
        first, last = np.searchsorted(block.eots, (start, end))
        part = _Part(split, np.array([[start, end]], np.int64), end - start, int(last - first))
        return _Piece(end - start, (part,), full=end - start == left)

    def _both_splits(self, start: int, tokens: int, eots: Positions, chosen: Ranges) -> _Piece:
        """Return the next piece of the `tokens` tokens from `start` on: the `chosen` ranges are for validation,
        everything else for training. EOTs and ranges count from `start`."""
        length, full = self._first_full(tokens, chosen)
        bounds = chosen.ravel().clip(max=length)
        before = np.searchsorted(eots, bounds)  # number of EOTs before each bound
        val_documents = int((before[1::2] - before[::2]).sum())
        train_documents = int(np.searchsorted(eots, length)) - val_documents
        # What the bounds divide is alternately for training and for validation.
        others = np.concatenate([[0], bounds, [length]])
        parts = []
        counts = (val_documents, train_documents)
        for split, edges, documents in zip(SPLITS, (bounds, others), counts, strict=True):
            ranges = edges.reshape(-1, 2)
            lengths = ranges[:, 1] - ranges[:, 0]
            parts.append(_Part(split, ranges[lengths > 0] + start, int(lengths.sum()), documents))
        parts.sort(key=lambda part: part.split == full)
        return _Piece(length, tuple(part for part in parts if part.tokens), full is not None)

    def _first_full(self, tokens: int, ranges: Ranges) -> tuple[int, Split | None]:
        """Return how many of `tokens` tokens fit until a segment is full, and the split of that segment."""
        starts, ends = ranges.T
        val_until = np.cumsum(ends - starts)  # validation tokens up to the end of each range
        train_until = ends - val_until  # training tokens before each range
        length: int = tokens
        full: Split | None = None
        if val_until[-1] >= (left := self._left_in_segment("val")):
            last = int(np.searchsorted(val_until, left))
            length, full = int(ends[last] - (val_until[last] - left)), "val"
        if tokens - val_until[-1] >= (left := self._left_in_segment("train")):
            passed = int(np.searchsorted(train_until, left))  # number of ranges that begin before it is full
            place = left + (int(val_until[passed - 1]) if passed else 0)
            if place <= length:
                length, full = place, "train"
        return length, full
