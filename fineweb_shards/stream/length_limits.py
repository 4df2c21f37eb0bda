"""Leave out documents with too few or too many tokens: --min-tokens and --max-document-tokens. No I/O.

A document may span any number of blocks, and its tokens may only be packed once it is known to be kept. So blocks are
held back, at most up to the limit: after that many tokens the answer is known. Blocks are not cut; they receive the
ranges to keep (`kept`), and their cursors still count all tokens.

A checkpoint comes right after a kept token. So if a run begins inside a document, either that document is kept, or all
of it is before the cursor. Each part of the input may have an unfinished document.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.types import Counts, Cursors, EncodedBlock, Positions

Verdict = Literal["kept", "short", "long"]


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The fewest and the most tokens a document may have, without EOT."""

    least_tokens: int = 0
    most_tokens: int | None = None

    def __bool__(self) -> bool:
        return self.least_tokens > 0 or self.most_tokens is not None

    def judge(self, tokens: int, *, ended: bool) -> Verdict | None:
        """Return the verdict on a document of `tokens` tokens, or more if it has not `ended`; None if still unknown."""
        if self.most_tokens is not None and tokens > self.most_tokens:
            return "long"
        if tokens < self.least_tokens:
            return "short" if ended else None
        return "kept" if ended or self.most_tokens is None else None


@dataclass(slots=True)
class _Document:
    """A document that begins or ends outside the current block."""

    tokens: int = 0  # so far
    ended: bool = False
    in_shards: bool = False  # finished shards have its beginning, so the rest is also kept

    def judge(self, limits: LengthLimits) -> Verdict | None:
        return "kept" if self.in_shards else limits.judge(self.tokens, ended=self.ended)


@dataclass(frozen=True, slots=True)
class _HeldBlock:
    """A block, divided into parts of different documents. The verdicts on the first and last may still be unknown."""

    block: EncodedBlock
    boundaries: Positions  # where the parts begin, and the end of the block
    kept: NDArray[np.bool_]  # for each part except the first and the last
    first: _Document | None  # of the first part; None if it is empty and belongs to none
    last: _Document | None  # of the last part, which may be the first
    begun: tuple[_Document, ...]  # those of the two that begin in this block
    counts: Counts  # of the documents between them

    def is_known(self, limits: LengthLimits) -> bool:
        return all(one is None or one.judge(limits) for one in (self.first, self.last))

    def finish(self, limits: LengthLimits) -> EncodedBlock:
        """Return the block with the ranges to keep. Documents count where they begin: a run that starts later would not
        know their length."""
        kept = self.kept.copy()
        kept[0] = self.first is not None and self.first.judge(limits) == "kept"
        kept[-1] = self.last is not None and self.last.judge(limits) == "kept"
        verdicts = [one.judge(limits) for one in self.begun]
        ends = Counts(short_documents=verdicts.count("short"), long_documents=verdicts.count("long"))
        # The ranges of kept parts, neighbours joined. Only the first and last part can be empty.
        wanted = np.concatenate([[False], kept & (np.diff(self.boundaries) > 0), [False]])
        edges = np.flatnonzero(wanted[1:] != wanted[:-1])
        ranges = self.boundaries[edges].reshape(-1, 2)
        return replace(self.block, kept=ranges, counts=self.block.counts + self.counts + ends)


def leave_out(
    blocks: Iterable[EncodedBlock], limits: Sequence[LengthLimits], starts: Cursors, *, eot_first: bool
) -> Iterator[EncodedBlock]:
    """Yield the blocks from `starts` on, each as soon as it is known which of its tokens to keep. Each part of the
    input has its own `limits`."""
    currents = [_Document(in_shards=True) if start.starts_mid_document else None for start in starts]
    held: list[deque[_HeldBlock]] = [deque() for _ in starts]

    def end(part: int) -> Iterator[EncodedBlock]:
        current = currents[part]
        if current is not None:
            current.ended = True
        while held[part]:
            yield held[part].popleft().finish(limits[part])

    for block in blocks:
        part = block.part
        if block.ends_part:
            yield from end(part)
            yield block
            continue
        held[part].append(_divide(block, limits[part], currents[part], eot_first=eot_first))
        current = held[part][-1].last
        if current is not None and eot_first and not block.ends_mid_document:
            current.ended, current = True, None  # otherwise only the next EOT would show it
        currents[part] = current
        while held[part] and held[part][0].is_known(limits[part]):
            yield held[part].popleft().finish(limits[part])
    for part in range(len(starts)):
        yield from end(part)


def _divide(block: EncodedBlock, limits: LengthLimits, current: _Document | None, *, eot_first: bool) -> _HeldBlock:
    """Divide a block that begins in the `current` document (None: between two), and judge its whole documents."""
    starts = block.eots if eot_first else block.eots + 1
    boundaries = np.concatenate([[0], starts, [len(block.tokens)]])
    lengths = np.diff(boundaries)
    # Every part but the first begins with its EOT; or every part but the last ends with it.
    lengths[1:] -= eot_first
    lengths[:-1] -= not eot_first
    several = len(lengths) > 1
    first = last = current
    if first is None and (lengths[0] or (several and not eot_first)):
        first = last = _Document()
    if first is not None:
        first.tokens += int(lengths[0])
        first.ended = several
    if several:
        last = _Document(int(lengths[-1])) if eot_first or lengths[-1] else None
    inner = lengths[1:-1]
    short = inner < limits.least_tokens
    long = np.zeros(len(inner), bool) if limits.most_tokens is None else inner > limits.most_tokens
    kept = np.zeros(len(lengths), bool)
    kept[1:-1] = ~(short | long)
    ends = {id(one): one for one in (first, last) if one is not None and one is not current}
    counts = Counts(short_documents=int(short.sum()), long_documents=int(long.sum()))
    return _HeldBlock(block, boundaries, kept, first, last, tuple(ends.values()), counts)
