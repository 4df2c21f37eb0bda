"""Pure, no I/O: token blocks in order in, slices of shards out.

A *checkpoint* is a place in the stream at which the manifest is written. It is due wherever a segment of
`shard_tokens` tokens is full, in either split; both splits then stand at the same place, so that one
cursor holds for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.stream.borders import Span, count_between
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Counts, ShardSlice, Split, TokenBlock, Tokens


@dataclass(frozen=True, slots=True)
class Done:
    """What is in the manifest already: tokens of each split, and EOTs of both."""

    val_tokens: int = 0
    train_tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens for one split, and how many EOTs are among them."""

    split: Split
    tokens: Tokens
    documents: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The next tokens of the stream, each with its split; the one that fills a segment comes last."""

    length: int
    parts: tuple[_Part, ...]
    full: bool = False

    @property
    def documents(self) -> int:
        return sum(part.documents for part in self.parts)


class Packer:
    """Cuts each split every `shard_tokens` tokens, and ends the stream after `max_tokens`.

    With `one_file` a split is one file: it is only full where nothing more can come.
    """

    def __init__(
        self,
        shard_tokens: int,
        *,
        split_rule: SplitRule | None = None,
        one_file: bool = False,
        eot_first: bool = True,
        done: Done | None = None,
        skip_tokens: int = 0,
        max_tokens: int | None = None,
    ) -> None:
        done = done or Done()
        self._shard_tokens = shard_tokens
        self._split_rule = split_rule or SplitRule()
        self._one_file = one_file
        self._eot_first = eot_first
        self._tokens: dict[Split, int] = {"val": done.val_tokens, "train": done.train_tokens}
        self._documents = done.documents
        self._skip_tokens = skip_tokens  # already in the manifest
        self._left_tokens = max_tokens  # of the whole stream

    @property
    def ended(self) -> bool:
        """Whether `max_tokens` are packed."""
        return self._left_tokens == 0

    def pack(self, block: TokenBlock) -> Iterator[ShardSlice]:
        """The slices that a block is cut into. What is behind `max_tokens` is dropped."""
        position = min(self._skip_tokens, len(block.tokens))
        self._skip_tokens -= position
        if position == len(block.tokens):  # nothing new, but its counts may be
            yield ShardSlice(block.tokens[:0], 0, block.counts, block.end)
        while position < len(block.tokens) and not self.ended:
            piece = self._next_piece(block, position)
            position += piece.length
            self._documents += piece.documents
            if self._left_tokens is not None:
                self._left_tokens -= piece.length
            end = block.end if position == len(block.tokens) else block.start.after(position)
            for number, part in enumerate(piece.parts, 1):
                self._tokens[part.split] += len(part.tokens)
                last = number == len(piece.parts)
                counted = last and position == len(block.tokens)
                yield ShardSlice(
                    part.tokens,
                    part.documents,
                    block.counts if counted else Counts(),
                    end,
                    split=part.split,
                    checkpoint=last and piece.full,
                    fills_shard=last and piece.full and self._is_final(part.split),
                )

    def _is_final(self, split: Split) -> bool:
        return not self._one_file or (split == "val" and self._tokens["val"] == self._split_rule.val_tokens)

    def _room(self, split: Split) -> int:
        """How many tokens the current segment of a split can still take."""
        room = self._shard_tokens - self._tokens[split] % self._shard_tokens
        if split == "val" and self._split_rule.val_tokens:
            room = min(room, self._split_rule.val_tokens - self._tokens["val"])
        return room

    def _next_piece(self, block: TokenBlock, start: int) -> _Piece:
        """As much as fits behind `start`, up to the end of the first segment that is full."""
        rule, stop = self._split_rule, len(block.tokens)
        if self._left_tokens is not None:
            stop = min(stop, start + self._left_tokens)
        if not rule.val_ratio:
            split: Split = "val" if self._tokens["val"] < rule.val_tokens else "train"
            return self._one_split(split, block, start, stop)
        span = Span(block.tokens, block.eots).cut(start, stop)
        ranges = rule.ranges(span.eots, len(span), self._documents, eot_first=self._eot_first)
        return (
            self._both_splits(span, ranges) if len(ranges) else self._one_split("train", block, start, stop)
        )

    def _one_split(self, split: Split, block: TokenBlock, start: int, stop: int) -> _Piece:
        room = self._room(split)
        end = min(stop, start + room)
        part = _Part(split, block.tokens[start:end], count_between(block.eots, start, end))
        return _Piece(end - start, (part,), full=end - start == room)

    def _both_splits(self, span: Span, ranges: NDArray[np.int64]) -> _Piece:
        """`ranges` are for validation, what is between them for training."""
        length, full = self._first_full(len(span), ranges)
        bounds = ranges.ravel().clip(max=length)
        # In turns for training and for validation.
        pieces = np.split(span.tokens[:length], bounds)
        before = np.searchsorted(span.eots, bounds)  # EOTs before each bound
        val_documents = int((before[1::2] - before[::2]).sum())
        train_documents = count_between(span.eots, 0, length) - val_documents
        parts: dict[Split, _Part] = {
            "val": _Part("val", np.concatenate(pieces[1::2]), val_documents),
            "train": _Part("train", np.concatenate(pieces[::2]), train_documents),
        }
        order = sorted(SPLITS, key=lambda split: split == full)
        return _Piece(
            length, tuple(parts[split] for split in order if len(parts[split].tokens)), full is not None
        )

    def _first_full(self, tokens: int, ranges: NDArray[np.int64]) -> tuple[int, Split | None]:
        """How many of so many tokens fit until a segment is full, and in which split it is."""
        starts, ends = ranges.T
        val_until = np.cumsum(ends - starts)  # validation tokens up to the end of each range
        train_until = ends - val_until  # training tokens before each range
        length: int = tokens
        full: Split | None = None
        if val_until[-1] >= (room := self._room("val")):
            last = int(np.searchsorted(val_until, room))
            length, full = int(ends[last] - (val_until[last] - room)), "val"
        if tokens - val_until[-1] >= (room := self._room("train")):
            passed = int(np.searchsorted(train_until, room))  # ranges that begin before it is full
            place = room + (int(val_until[passed - 1]) if passed else 0)
            if place <= length:
                length, full = place, "train"
        return length, full
