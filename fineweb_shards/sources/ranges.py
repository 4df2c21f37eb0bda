"""Divide a text file into ranges of bytes that end where documents end, or at a cut in a long document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fineweb_shards.sources.byte_view import ByteView, StreamView
from fineweb_shards.sources.separators import Literal, Separator
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, LONGEST_UNCUT_BYTES, find_cut
from fineweb_shards.vocabulary import CutRule

# How far to look for the end of a document that can't be cut. The encoder decides what is too long for it, by
# the length of the text. So this is more: the file may have twice as many bytes (CRLF is read as LF).
FARTHEST_BYTES = 4 * LONGEST_UNCUT_BYTES
_WINDOW_BYTES = 64 * 1024
_FAR_WINDOW_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of a file that becomes a batch."""

    start: int
    end: int
    starts_mid_document: bool = False
    ends_mid_document: bool = False
    starts_at_seam: bool = False
    ends_at_seam: bool = False
    problem: str | None = None  # why the range is left out
    is_uncut: bool = False  # too long to be encoded whole, and without a place to cut


def next_target(start: int, batch_bytes: int, distance: int = 0) -> int:
    """Return the place behind which the batch from `start` on ends, as soon as it can: the next multiple of
    `batch_bytes`, more than `distance` bytes away. So the places to look for ends are known beforehand."""
    return ((start + distance) // batch_bytes + 1) * batch_bytes


def find_ranges(
    view: ByteView,
    separator: Separator,
    start: int,
    starts_mid_document: bool,
    batch_bytes: int,
    rule: CutRule | None,
) -> Iterator[Range]:
    """Yield ranges of about `batch_bytes` from `start` to the end of the text.

    If there is neither a separator nor a place to cut for too long, the last such place ends a document, and
    the rest of it is a range by itself, which can't be encoded: `is_uncut`. Where that happens depends on the
    text alone, and not on the batch size.
    """
    if rule != "gpt2":
        batch_bytes = min(batch_bytes, LONGEST_UNCUT_BYTES)  # so that no range passes over what is too long
    seam = False
    while view.read_at(start, 1):
        found = _find_end(view, separator, start, starts_mid_document, batch_bytes, rule)
        if isinstance(found, _Uncut):
            if starts_mid_document or found.start > start:
                yield Range(start, found.start, starts_mid_document)
            end = _skip_document(view, separator, found.searched)
            yield Range(found.start, end, is_uncut=True)
            start, starts_mid_document = end, False
            continue
        end, ends_mid_document, next_seam = found
        yield Range(start, end, starts_mid_document, ends_mid_document, seam, next_seam)
        start, starts_mid_document, seam = end, ends_mid_document, next_seam


class _End(NamedTuple):
    """The end of a range."""

    position: int
    ends_mid_document: bool = False
    seam: bool = False


class _Uncut(NamedTuple):
    """A part of a document that is too long to be encoded whole, and has no place to cut."""

    start: int
    searched: int  # up to here it has no end


def _find_end(
    view: ByteView,
    separator: Separator,
    start: int,
    starts_mid_document: bool,
    batch_bytes: int,
    rule: CutRule | None,
) -> _End | _Uncut:
    """Return the end of a range from `start`: at a document's end or, if that is far away, at a cut."""
    lookback = separator.lookback
    target = next_target(start, batch_bytes, max(lookback, CONTEXT_BYTES))
    cut_bytes = min(batch_bytes, _WINDOW_BYTES)
    offset = target
    # Look at least as far as a separator that begins before a cut can extend.
    while offset < target + max(batch_bytes, cut_bytes + lookback):
        window = view.read_at(offset - lookback, lookback + _WINDOW_BYTES)
        boundary = separator.find_boundary(window)
        if boundary is not None:
            return _End(offset - lookback + boundary)
        if len(window) < lookback + _WINDOW_BYTES:
            return _End(view.size_bytes)
        offset += _WINDOW_BYTES
    if isinstance(separator, Literal) and separator.overlaps_itself:
        # In a sequence such as `-----` split at `--`, the first occurrence decides where the others are.
        boundary = separator.last_boundary(view.read_at(start, offset - start))
        if boundary is not None and boundary >= target - start:
            return _End(start + boundary)
    # The document is long. No separator follows `target`, so a cut after it can't divide one.
    window = view.read_at(target - CONTEXT_BYTES, cut_bytes + 2 * CONTEXT_BYTES)
    cut = find_cut(window, CONTEXT_BYTES, CONTEXT_BYTES + cut_bytes, rule)
    if cut is not None:
        return _End(target - CONTEXT_BYTES + cut.position, True, cut.seam)
    assert rule != "gpt2", "there is always a place to cut in a kilobyte"
    before = view.read_at(start, target - start + CONTEXT_BYTES)
    last_cut = find_cut(before, 0, target - start, rule)
    last_document = int(separator.split(before, starts_mid_document).starts[-1])
    uncut = start + max(last_document, last_cut.position if last_cut else 0)
    return _find_far_end(view, separator, target, uncut, rule)


def _find_far_end(
    view: ByteView, separator: Separator, target: int, uncut: int, rule: CutRule | None
) -> _End | _Uncut:
    """Look behind `target` for the end of a document, or a place to cut it, for as long as it may be uncut.

    It is uncut since `uncut`.
    """
    lookback = separator.lookback
    margin = lookback + CONTEXT_BYTES  # of a cut to the end of a window, so that it divides no separator
    offset, limit = target, uncut + FARTHEST_BYTES
    back, low = max(lookback, CONTEXT_BYTES), target
    while offset < limit:
        size = min(_FAR_WINDOW_BYTES, limit - offset)
        begin = offset - back
        window = view.read_at(begin, back + size)
        boundary = separator.find_boundary(window[back - lookback :])
        if boundary is not None:
            return _End(offset - lookback + boundary)
        if len(window) < back + size:
            return _End(view.size_bytes)
        cut = find_cut(window, low - begin, len(window) - margin, rule)
        if cut is not None:
            return _End(begin + cut.position, True)
        offset += size
        back, low = margin + CONTEXT_BYTES, offset - margin
    return _Uncut(uncut, limit)


def _skip_document(view: ByteView, separator: Separator, offset: int) -> int:
    """Return where the document ends that has no end up to `offset`, without keeping it in memory."""
    lookback = separator.lookback
    while True:
        window = view.read_at(offset - lookback, lookback + _FAR_WINDOW_BYTES)
        boundary = separator.find_boundary(window)
        if boundary is not None:
            return offset - lookback + boundary
        if len(window) < lookback + _FAR_WINDOW_BYTES:
            return view.size_bytes
        offset += _FAR_WINDOW_BYTES
        if isinstance(view, StreamView):
            view.forget(offset - lookback)
