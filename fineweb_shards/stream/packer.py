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

from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Counts, ShardSlice, Split, TokenBlock, Tokens, count_eots


@dataclass(frozen=True, slots=True)
class Done:
    """What is in the manifest already: tokens of each split, and EOTs of both."""

    val_tokens: int = 0
    train_tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """The next tokens of the stream, each with its split; the one that fills a segment comes last."""

    length: int
    parts: tuple[tuple[Split, Tokens], ...]
    full: bool = False


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
            yield ShardSlice(block.tokens[:0], block.counts, block.end)
        while position < len(block.tokens) and not self.ended:
            piece = self._next_piece(block.tokens[position:][: self._left_tokens])
            position += piece.length
            if self._left_tokens is not None:
                self._left_tokens -= piece.length
            end = block.end if position == len(block.tokens) else block.start.after(position)
            for number, (split, tokens) in enumerate(piece.parts, 1):
                self._tokens[split] += len(tokens)
                last = number == len(piece.parts)
                counted = last and position == len(block.tokens)
                yield ShardSlice(
                    tokens,
                    block.counts if counted else Counts(),
                    end,
                    split=split,
                    checkpoint=last and piece.full,
                    fills_shard=last and piece.full and self._is_final(split),
                )

    def _is_final(self, split: Split) -> bool:
        return not self._one_file or (split == "val" and self._tokens["val"] == self._split_rule.val_tokens)

    def _room(self, split: Split) -> int:
        """How many tokens the current segment of a split can still take."""
        room = self._shard_tokens - self._tokens[split] % self._shard_tokens
        if split == "val" and self._split_rule.val_tokens:
            room = min(room, self._split_rule.val_tokens - self._tokens["val"])
        return room

    def _next_piece(self, tokens: Tokens) -> _Piece:
        """As much as fits, up to the end of the first segment that is full."""
        if self._split_rule.val_ratio:
            ranges = self._split_rule.ranges(tokens, self._documents, eot_first=self._eot_first)
            piece = self._both_splits(tokens, ranges) if len(ranges) else self._one_split("train", tokens)
            self._documents += count_eots(tokens[: piece.length])
            return piece
        return self._one_split(
            "val" if self._tokens["val"] < self._split_rule.val_tokens else "train", tokens
        )

    def _one_split(self, split: Split, tokens: Tokens) -> _Piece:
        room = self._room(split)
        part = tokens[:room]
        return _Piece(len(part), ((split, part),), full=len(part) == room)

    def _both_splits(self, tokens: Tokens, ranges: NDArray[np.int64]) -> _Piece:
        """`ranges` are for validation, what is between them for training."""
        starts, ends = ranges.T
        val_until = np.cumsum(ends - starts)  # validation tokens up to the end of each range
        train_until = ends - val_until  # training tokens before each range
        length, full = len(tokens), None
        if val_until[-1] >= (room := self._room("val")):
            last = int(np.searchsorted(val_until, room))
            length, full = int(ends[last] - (val_until[last] - room)), "val"
        if len(tokens) - val_until[-1] >= (room := self._room("train")):
            passed = int(np.searchsorted(train_until, room))  # ranges that begin before it is full
            place = room + (int(val_until[passed - 1]) if passed else 0)
            if place <= length:
                length, full = place, "train"
        # In turns for training and for validation.
        pieces = np.split(tokens[:length], ranges.ravel().clip(max=length))
        parts: dict[Split, Tokens] = {
            "val": np.concatenate(pieces[1::2]),
            "train": np.concatenate(pieces[::2]),
        }
        order = sorted(SPLITS, key=lambda split: split == full)
        return _Piece(
            length, tuple((split, parts[split]) for split in order if len(parts[split])), full is not None
        )
