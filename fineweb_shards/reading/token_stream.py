"""The token stream of finished shards, read back in its order, a block at a time.

Shards in a row are read one after the other. Where a share of the documents went to validation, both splits
are read side by side and every document goes back to its place: its number says which split it is in.
Nothing is trusted: a segment is checked against its hash before a token of it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.reading.verify import check_segment
from fineweb_shards.store.files import list_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.tokenizers.ranks import EOT
from fineweb_shards.types import SPLITS, ShardRecord, Split, Tokens

BLOCK_TOKENS = 2**19  # as in verify.py: no larger, or page faults take more time than the copying
_RUN_DOCUMENTS = 2**16  # numbers looked at together


def read_stream(
    folder: Path, layout: Layout, manifest: Manifest, split_rule: SplitRule, start: int
) -> Iterator[Tokens]:
    """The stream from token `start` on, as it was before it was split."""
    records = manifest.shards
    if not split_rule.val_ratio:
        yield from _read(folder, layout, records, start)
        return
    splits: dict[Split, _Documents] = {}
    for split in SPLITS:
        blocks = _read(folder, layout, [record for record in records if record.split == split], 0)
        splits[split] = _Documents(blocks, layout.eot_first)
    for block in gather(_merge(splits, split_rule)):
        if start < len(block):
            yield block[start:]
        start = max(0, start - len(block))


def gather(parts: Iterable[Tokens]) -> Iterator[Tokens]:
    """Many small arrays in a few large ones."""
    waiting: list[Tokens] = []
    tokens = 0
    for part in parts:
        waiting.append(part)
        tokens += len(part)
        if tokens >= BLOCK_TOKENS:
            yield np.concatenate(waiting)
            waiting, tokens = [], 0
    if tokens:
        yield np.concatenate(waiting)


def _read(folder: Path, layout: Layout, records: Sequence[ShardRecord], start: int) -> Iterator[Tokens]:
    """The tokens of segments one after the other. The next segment is checked while one is read."""
    files = {file.name: file for file in list_files(records)}
    wanted = []  # with the number of tokens to skip
    for record in records:
        if start < record.tokens:
            wanted.append((record, start))
        start = max(0, start - record.tokens)

    with ThreadPoolExecutor(1) as checker:

        def check(number: int) -> Future[str | None]:
            record = wanted[number][0]
            return checker.submit(check_segment, folder, layout, files[record.name], record)

        ahead = [check(0)] if wanted else []
        for number, (record, skip) in enumerate(wanted):
            if damage := ahead.pop().result():
                raise DamageError(f"{folder}: {damage}.", "Restore it, or build it again.")
            if number + 1 < len(wanted):
                ahead.append(check(number + 1))
            yield from _read_segment(folder / record.name, layout, record, skip)


def _read_segment(path: Path, layout: Layout, record: ShardRecord, skip: int) -> Iterator[Tokens]:
    with open(path, "rb") as file:
        file.seek(max(record.offset, layout.header_bytes) + 2 * skip)
        left = record.tokens - skip
        while left:
            block = np.fromfile(file, "<u2", min(left, BLOCK_TOKENS))
            if not len(block):
                raise DamageError(f"{path}: has become shorter while it was read.")
            left -= len(block)
            yield block


def _merge(splits: dict[Split, _Documents], split_rule: SplitRule) -> Iterator[Tokens]:
    """The documents of both splits in the order of their numbers."""
    first = 0
    while any(split.more() for split in splits.values()):
        chosen = split_rule.chooses(np.arange(first, first + _RUN_DOCUMENTS, dtype=np.int64))
        first += _RUN_DOCUMENTS
        borders = [0, *(np.flatnonzero(chosen[1:] != chosen[:-1]) + 1).tolist(), _RUN_DOCUMENTS]
        for begin, end in itertools.pairwise(borders):
            yield from splits["val" if chosen[begin] else "train"].take(end - begin)


class _Documents:
    """One split, taken by documents."""

    def __init__(self, blocks: Iterator[Tokens], eot_first: bool) -> None:
        self._blocks = blocks
        self._eot_first = eot_first
        self._block: Tokens = np.empty(0, np.uint16)
        self._places: list[int] = []  # of the EOTs in it
        self._position = 0
        self._place = 0

    def more(self) -> bool:
        """Whether anything is left; loads the next block where needed."""
        while self._position == len(self._block):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block, self._position, self._place = block, 0, 0
            self._places = np.flatnonzero(block == EOT).tolist()
        return True

    def take(self, documents: int) -> Iterator[Tokens]:
        """The tokens of the next `documents` documents, or of those that are left."""
        while documents > 0 or self._eot_first:
            if not self.more():
                return
            # With EOT in front, a document's end is known by the beginning of the next one.
            last = self._place + documents - (0 if self._eot_first else 1)
            found = last < len(self._places)
            end = self._places[last] + (0 if self._eot_first else 1) if found else len(self._block)
            if end > self._position:
                yield self._block[self._position : end]
            passed = (last if self._eot_first else last + 1) if found else len(self._places)
            documents -= passed - self._place
            self._position, self._place = end, passed
            if found:
                return
