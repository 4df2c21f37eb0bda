"""Cut the sections of the stream, in order, into slices of shards for the two splits. No I/O.

That takes only lengths and the positions of EOTs: the tokens themselves may be elsewhere.

A *checkpoint* is a place in the stream at which the manifest is saved: wherever a segment of `shard_tokens` tokens is
full, in either split, and where validation ends if it is the beginning of the stream. Both splits are then packed up to
the same place in the stream, so that the same cursors, one per part of the input, are valid for both.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fineweb_shards.stream.section import NO_POSITIONS, Section, kept_ranges
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Counts, Cursor, Cursors, Positions, Ranges, ShardSlice, Split, Taken

_BEGINNING = (Cursor(0, 0),)  # of an input of one part
_NO_RANGES: Ranges = np.empty((0, 2), np.int64)
_NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class PackedTotals:
    """The totals in the manifest: the tokens of each split, and the EOTs of both together."""

    val_tokens: int = 0
    train_tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Ranges of a section for one split, and the number of tokens and EOTs in them."""

    split: Split
    ranges: Ranges
    tokens: int
    documents: int


class Packer:
    """Cuts each split every `shard_tokens` tokens, and ends the stream after `max_tokens`. It begins at `starts`; for a
    mix, `taken` is what it has taken of each part.

    With `one_file` a split is one growing file, which is complete only when no more tokens can follow: for validation,
    when training begins.
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
        taken: tuple[Taken, ...] = (),
        max_tokens: int | None = None,
    ) -> None:
        done = done or PackedTotals()
        self._shard_tokens = shard_tokens
        self._split_rule = split_rule or SplitRule()
        self._one_file, self._eot_first = one_file, eot_first
        self._tokens: dict[Split, int] = {"val": done.val_tokens, "train": done.train_tokens}
        self._documents = done.documents
        self._places = list(starts)  # up to which each part is packed
        # The counts of each part's last blocks, if these may end in a document that is left out. They are added once
        # the part is packed past that document. No run may begin inside it, because it would keep the rest.
        self._waiting: dict[int, Counts] = {}
        self._taken = taken
        self.left_tokens = max_tokens  # still to pack; None: no limit
        # Whether validation is the beginning of the stream and its last file is unfinished. A run that begins right
        # after the tokens of such a file has not opened it: that file is finished with the stream.
        self._val_is_open = False

    @property
    def first_segment_tokens(self) -> int:
        """The number of packed tokens, if all are for validation and don't fill a segment; else 0."""
        val = self._tokens["val"]
        return 0 if self._tokens["train"] or val >= self._shard_tokens else val

    @property
    def ended(self) -> bool:
        return self.left_tokens == 0

    def pack(self, section: Section) -> Iterator[ShardSlice]:
        """Cut a section into slices; tokens after `max_tokens` are dropped."""
        in_order = self._split_rule.is_in_order
        position = ended = 0  # packed tokens, and completely packed blocks
        while position < section.tokens and not self.ended:
            parts, full = self._next_parts(section, position)
            if self._val_is_open and parts[0].split == "train":
                # Without tokens: the end of validation's last document is known only when the next one begins.
                yield self._nothing(Counts(), checkpoint=True)
            length = sum(part.tokens for part in parts)
            ended, counts = self._move(section, position, position + length, ended)
            position += length
            self._documents += sum(part.documents for part in parts)
            if self.left_tokens is not None:
                self.left_tokens -= length
            for part in parts:
                self._tokens[part.split] += part.tokens
                last = part is parts[-1]
                fills_shard = last and full and not self._one_file
                self._val_is_open = in_order and part.split == "val" and not fills_shard
                yield ShardSlice(
                    *section.find(part.ranges),
                    part.tokens,
                    part.documents,
                    counts if last else _NO_COUNTS,
                    tuple(self._places),
                    self._taken,
                    part.split,
                    checkpoint=last and full,
                    fills_shard=fills_shard,
                )
        if not section.tokens:  # it may still have counts
            _, counts = self._move(section, 0, 0, ended)
            yield self._nothing(counts)

    def _nothing(self, counts: Counts, *, checkpoint: bool = False) -> ShardSlice:
        """Return a slice without tokens; a checkpoint ends validation."""
        split: Split = "val" if checkpoint else "train"
        return ShardSlice(
            _NO_RANGES, NO_POSITIONS, 0, 0, counts, tuple(self._places), self._taken, split, checkpoint, checkpoint
        )

    def _move(self, section: Section, begin: int, end: int, ended: int) -> tuple[int, Counts]:
        """Record that the tokens of a section from `begin` up to `end` are packed, after `ended` blocks were completely
        packed. Return the new number of such blocks, and the new counts."""
        counts: list[Counts] = []
        newest: dict[int, int] = {}  # by part: the last block with packed tokens
        if begin < end:
            for holder, place in section.last_places(begin, end):
                block = section.blocks[holder]
                self._places[block.part] = block.start.after(place)
                if block.part in self._waiting:
                    counts.append(self._waiting.pop(block.part))
                newest[block.part] = holder
            if self._taken and not self._is_validation(section):
                self._count_taken(section, begin, end)
        while ended < len(section.ends) and section.ends[ended][0] <= end:
            holder = section.ends[ended][1]
            block = section.blocks[holder]
            part, ended = block.part, ended + 1
            kept = kept_ranges(block) if block.end.starts_mid_document else None
            is_safe_end = kept is None or (len(kept) > 0 and int(kept[-1, 1]) == len(block.tokens))
            if holder < newest.get(part, 0):
                counts.append(block.counts)
            elif is_safe_end:  # a run may begin there
                if part in self._waiting:
                    counts.append(self._waiting.pop(part))
                counts.append(block.counts)
                self._places[part] = block.end
            else:
                self._waiting[part] = self._waiting.get(part, _NO_COUNTS) + block.counts
        return ended, functools.reduce(operator.add, counts) if counts else _NO_COUNTS

    def _count_taken(self, section: Section, begin: int, end: int) -> None:
        """Add the tokens of a section from `begin` up to `end`, and their EOTs, to the totals taken of each part."""
        ranges, holders = section.find(np.array([[begin, end]], np.int64))
        part_of = np.array([block.part for block in section.blocks], np.int64)
        parts, lengths = part_of[holders], ranges[:, 1] - ranges[:, 0]
        of_eots = part_of[section.holders_of_eots(begin, end)]
        self._taken = tuple(
            Taken(one.tokens + int(lengths[parts == part].sum()), one.documents + int((of_eots == part).sum()))
            for part, one in enumerate(self._taken)
        )

    def _left_in_segment(self, split: Split) -> int:
        return self._shard_tokens - self._tokens[split] % self._shard_tokens

    def _is_validation(self, section: Section) -> bool:
        """Return whether a section comes from files for validation. No section mixes them with others."""
        files, block = self._split_rule.val_files, section.blocks[section.holders[0]]
        return bool(files) and block.start.file < files[block.part]

    def _training_start(self, section: Section, start: int) -> int:
        """Return where in a section, from `start` on, training begins; at the latest its end."""
        rule = self._split_rule
        if rule.val_files:
            return section.tokens if self._is_validation(section) else start
        if not rule.val_documents:
            return min(section.tokens, start + max(0, rule.val_tokens - self._tokens["val"]))
        # The EOT between the splits: the first of training, or the last of validation.
        first = int(np.searchsorted(section.eots, start))
        boundary = first + rule.val_documents - self._documents - (not self._eot_first)
        if boundary < first:
            return start
        eots = section.eots
        return int(eots[boundary]) + (not self._eot_first) if boundary < len(eots) else section.tokens

    def _next_parts(self, section: Section, start: int) -> tuple[list[_Part], bool]:
        """Return the tokens of a section from `start` up to the first of: a full segment, the end of validation, of the
        section, or of the stream; and whether a segment is full, which is that of the last part."""
        rule, stop = self._split_rule, section.tokens
        if self.left_tokens is not None:
            stop = min(stop, start + self.left_tokens)
        split: Split = "train"
        if rule.is_in_order:
            boundary = self._training_start(section, start)
            if start < boundary:
                split, stop = "val", min(stop, boundary)
        else:
            first, last = np.searchsorted(section.eots, (start, stop))
            eots = section.eots[first:last] - start
            chosen = rule.ranges(eots, stop - start, self._documents, eot_first=self._eot_first)
            if len(chosen):
                return self._both_splits(start, stop - start, eots, chosen)
        left = self._left_in_segment(split)
        end = min(stop, start + left)
        first, last = np.searchsorted(section.eots, (start, end))
        part = _Part(split, np.array([[start, end]], np.int64), end - start, int(last - first))
        return [part], part.tokens == left

    def _both_splits(self, start: int, tokens: int, eots: Positions, chosen: Ranges) -> tuple[list[_Part], bool]:
        """Return the next parts of the `tokens` tokens from `start` on, with the `chosen` ranges for validation and the
        others for training. EOTs and ranges are relative to `start`."""
        length, full = self._first_full(tokens, chosen)
        bounds = chosen.ravel().clip(max=length)
        before = np.searchsorted(eots, bounds)  # number of EOTs before each bound
        val_documents = int((before[1::2] - before[::2]).sum())
        train_documents = int(np.searchsorted(eots, length)) - val_documents
        # The bounds alternate between training and validation.
        others = np.concatenate([[0], bounds, [length]])
        parts = []
        counts = (val_documents, train_documents)
        for split, edges, documents in zip(SPLITS, (bounds, others), counts, strict=True):
            ranges = edges.reshape(-1, 2)
            lengths = ranges[:, 1] - ranges[:, 0]
            if split_tokens := int(lengths.sum()):
                parts.append(_Part(split, ranges[lengths > 0] + start, split_tokens, documents))
        return sorted(parts, key=lambda part: part.split == full), full is not None

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
