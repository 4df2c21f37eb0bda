"""Shuffle all documents of a stream by a seed. No I/O.

The order is that of (hash64(seed, ordinal), ordinal), where a document's ordinal is its number in the stream: so it is
the same on every machine, for any number of workers, piles and crashes. It takes two passes. The first appends every
document to one of many *piles*, chosen by the top bits of its hash, so that each pile precedes the next one. The second
reads one pile after another, sorted.

This module is the first pass without its files: which piece of a section goes to which pile, and at which offset.
Documents of files for validation come first in the stream. They have their own pile, number 0, and are shuffled among
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.types import Counts, Cursor, Cursors, Piles, Positions, Split, Taken

MOST_PILES = 512  # a worker has all of them open; their size is unlimited, because no process holds a whole pile
MOST_IN_BUCKET = 4096  # a worker fetches a whole one for each batch
CHECKSUMS = 2**53
Hashes = NDArray[np.uint64]
STEP, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_NO_COUNTS = Counts()
_SHIFTS = tuple(np.uint64(one) for one in (30, 27, 31, 32))


def mix64(values: Hashes) -> Hashes:
    """The finalizer of SplitMix64, which maps 64 bits to 64 bits one to one."""
    one, two, three, _ = _SHIFTS
    values = (values ^ (values >> one)) * _FIRST
    values = (values ^ (values >> two)) * _SECOND
    return values ^ (values >> three)


def hash64(seed: int, ordinals: Positions) -> Hashes:
    """Return the hash of each ordinal, unique for this seed. The seed is mixed in twice: otherwise the orders of two
    seeds would be shifted copies of each other."""
    start = mix64(np.array([seed], np.uint64) + STEP)
    return mix64(mix64(ordinals.astype(np.uint64) * STEP + start) ^ start)


def pile_of(hashes: Hashes, count: int) -> Piles:
    """Return the pile of each training document, from 1 on."""
    half = _SHIFTS[3]
    piles: Piles = (((hashes >> half) * np.uint64(count)) >> half).astype(np.int16) + np.int16(1)
    return piles


@dataclass(frozen=True, slots=True)
class PileState:
    """The progress of the first pass; everything before it is durable."""

    count: int  # of piles, without that for validation
    end: Cursors  # of the input
    tokens: tuple[int, ...]  # in each pile, validation first
    taken: tuple[Taken, ...] = ()  # of each part of a mix
    documents: int = 0  # begun so far
    open_tokens: int = 0  # so far in the last document, if it has not ended and is not in the list yet; else 0
    open_pile: int = 0  # of that document
    list_bytes: int = 0
    list_sha256: str = ""
    in_bucket: bool = False  # with the output, for a cluster; else they are files
    counts: Counts = _NO_COUNTS  # of the input up to `end`
    ended: bool = False
    checksum: int = 0  # of the documents in the list
    earlier_checksum: int | None = None  # in a repeated pass: of the documents that the first one listed

    @classmethod
    def beginning(
        cls, count: int, starts: Cursors, taken: tuple[Taken, ...] = (), *, in_bucket: bool = False
    ) -> PileState:
        return cls(count, starts, (0,) * (count + 1), taken, in_bucket=in_bucket)

    def again(self) -> PileState:
        """Return the state that repeats the pass, with the same number of piles: cursors of finished shards are
        positions in them."""
        starts, taken = (Cursor(0, 0),) * len(self.end), (Taken(),) * len(self.taken)
        state = self.beginning(self.count, starts, taken, in_bucket=self.in_bucket)
        return replace(state, earlier_checksum=self.checksum if self.ended else self.earlier_checksum)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive pieces of documents in a section: piece i has the tokens from `bounds[i]` up to `bounds[i + 1]`,
    which go to `piles[i]`, from its token `offsets[i]` on."""

    bounds: Positions
    piles: Piles
    offsets: Positions

    def place(self, begins: Positions) -> tuple[Piles, Positions]:
        """Return pile and offset of each of these tokens."""
        rows = np.searchsorted(self.bounds, begins, side="right") - 1
        return self.piles[rows], self.offsets[rows] + begins - self.bounds[rows]


@dataclass(frozen=True, slots=True)
class Listed:
    """Documents that have ended, each with its hash, tokens and pile."""

    hashes: Hashes
    lengths: Positions
    piles: Piles

    @property
    def checksum(self) -> int:
        """A checksum of the order, lengths and piles of these documents. That of several lists is their sum (mod
        CHECKSUMS), wherever checkpoints divide them."""
        rest = mix64(self.lengths.astype(np.uint64) * np.uint64(2 * MOST_PILES) + self.piles.astype(np.uint64))
        return int(mix64(self.hashes ^ rest).sum(dtype=np.uint64)) % CHECKSUMS


class Shuffler:
    """Assigns documents to piles. It begins at `state`."""

    def __init__(self, seed: int, state: PileState, *, eot_first: bool) -> None:
        self._seed = seed
        self._state = state
        self._eot_first = eot_first
        self._tokens = np.array(state.tokens, np.int64)  # in each pile
        self._documents = state.documents
        self._open_tokens, self._open_pile = state.open_tokens, state.open_pile
        self._listed: list[Listed] = []

    def assign(self, eots: Positions, begin: int, end: int, split: Split) -> Pieces:
        """Assign the tokens of a section from `begin` up to `end`, at least one, all for one split. `eots` are those
        of the section."""
        first, last = np.searchsorted(eots, (begin, end))
        cuts = eots[first:last] if self._eot_first else eots[first:last] + 1
        if self._eot_first and len(cuts) and int(cuts[0]) == begin:
            self._end_open()
        ends_document = not self._eot_first and len(cuts) > 0 and int(cuts[-1]) == end
        bounds = np.concatenate([[begin], cuts[(cuts > begin) & (cuts < end)], [end]])
        lengths = np.diff(bounds)
        ordinals = self._documents - (self._open_tokens > 0) + np.arange(len(lengths))
        hashes = hash64(self._seed, ordinals)
        piles = pile_of(hashes, self._state.count) if split == "train" else np.zeros(len(ordinals), np.int16)
        # Each begins after the tokens that its pile has, and gets from earlier pieces.
        order = np.argsort(piles, kind="stable")
        before = np.cumsum(lengths[order]) - lengths[order]
        is_first = np.concatenate([[True], np.diff(piles[order]) > 0])
        before -= np.maximum.accumulate(np.where(is_first, before, 0))
        offsets = np.empty_like(before)
        offsets[order] = self._tokens[piles[order]] + before
        self._tokens += np.bincount(piles, lengths, len(self._tokens)).astype(np.int64)
        whole = lengths.copy()
        whole[0] += self._open_tokens
        self._documents = int(ordinals[-1]) + 1
        self._listed.append(Listed(hashes, whole, piles))
        self._open_tokens = 0
        if not ends_document:
            self._listed[-1] = Listed(hashes[:-1], whole[:-1], piles[:-1])
            self._open_tokens, self._open_pile = int(whole[-1]), int(piles[-1])
        return Pieces(bounds, piles, offsets)

    def end(self) -> None:
        """End the stream. Where EOTs come last, a document cut by --max-tokens has none and is left out, because it
        would run into the next one."""
        if self._eot_first:
            self._end_open()
        self._open_tokens = 0

    def _end_open(self) -> None:
        if self._open_tokens:
            hashes = hash64(self._seed, np.array([self._documents - 1]))
            self._listed.append(Listed(hashes, np.array([self._open_tokens]), np.array([self._open_pile], np.int16)))
        self._open_tokens = 0

    def state(self, end: Cursors, taken: tuple[Taken, ...], counts: Counts) -> PileState:
        """Return the progress, without the list."""
        tokens = tuple(self._tokens.tolist())
        return replace(
            self._state, end=end, tokens=tokens, taken=taken, counts=counts, documents=self._documents,
            open_tokens=self._open_tokens, open_pile=self._open_pile,
        )  # fmt: skip

    @property
    def listed(self) -> int:
        """How many documents have ended since the last `take_listed`."""
        return sum(len(one.hashes) for one in self._listed)

    @property
    def lists(self) -> int:
        """The argument for a later `take_listed` that takes the documents ended up to now."""
        return len(self._listed)

    def take_listed(self, lists: int | None = None) -> Listed:
        """Return the documents that have ended since the last call; with `lists`, only the first `lists` lists."""
        taken = self._listed[:lists]
        self._listed = self._listed[len(taken) :]
        return join_lists(taken)


def join_lists(lists: Sequence[Listed]) -> Listed:
    hashes, nothing = np.empty(0, np.uint64), np.empty(0, np.int64)
    return Listed(
        np.concatenate([hashes, *(one.hashes for one in lists)]),
        np.concatenate([nothing, *(one.lengths for one in lists)]),
        np.concatenate([np.empty(0, np.int16), *(one.piles for one in lists)]),
    )
