"""Find places where a long text can be cut in two without changing its tokens.

GPT-2 first splits a text into pieces with a pattern, then encodes every piece on its own:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A *safe* cut is at a place where a piece must begin, whatever comes before or after:

- between a character that is not white space and one that is: no piece contains the two in this order;
- between two ASCII characters of different classes (letter, digit, other), unless the first is an
  apostrophe, which may begin a contraction.

English has such a place every few bytes. Other text (Chinese, base64, a million dashes) may have none for
gigabytes. It is cut at a *seam*: a place inside a piece where both halves are still split into the same
pieces as the whole, but a token may have been cut in two. seams.py repairs the tokens there.

Only ASCII letters are recognized as letters, because Unicode tables differ between Python and tiktoken.
White space can be listed: it has not changed since Unicode 6.3 (a test compares the list with tiktoken).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# A decision about a cut depends on this many bytes on each side of it (at most three characters).
CONTEXT_BYTES = 16

_SAFE = re.compile(
    rb"[!-~](?=[ \t\r\n])"
    rb"|[A-Za-z](?=[!-@\[-`{-~])"
    rb"|[0-9](?=[!-/:-~])"
    rb"|[!-&(-/:-@\[-`{-~](?=[0-9A-Za-z])"
)
_CONTRACTION_LETTERS = frozenset("sdmtlvr")


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between two bytes; at a `seam` a token may have been cut in two."""

    position: int
    seam: bool


def find_cut(data: bytes, low: int, high: int) -> Cut | None:
    """Return the last safe cut in `data[low:high]` or, if there is none, the last seam.

    Returns None only if the range is shorter than a few characters. `data` should contain CONTEXT_BYTES
    more on both sides, if the text continues there.
    """
    stop = high
    while stop > low:  # backwards, in small steps, because only the last match is needed
        start = max(low, stop - 4096)
        # One more byte on the right, for the look-ahead of a match that ends at `stop`.
        matches = [m.end() for m in _SAFE.finditer(data, max(start - 1, 0), min(stop + 1, len(data)))]
        good = [end for end in matches if low < end <= stop and end < len(data)]
        if good:
            return Cut(good[-1], seam=False)
        stop = start
    for position in range(high, low, -1):
        if _may_be_seam(data, position):
            return Cut(position, seam=True)
    return None


def _may_be_seam(data: bytes, position: int) -> bool:
    """Return whether a cut at `position` leaves all other borders between pieces as they are."""
    if not _is_character_border(data, position):
        return False
    left = data[max(0, position - CONTEXT_BYTES) : position].decode("utf-8", "replace")
    right = data[position : position + CONTEXT_BYTES].decode("utf-8", "replace")
    if len(left) < 3 or len(right) < 3:
        return False
    before, after = left[-1], right[0]
    if before in WHITE_SPACE and after not in WHITE_SPACE:
        return False  # the space belongs to the word that follows
    if before == "\r" and after == "\n":
        return False  # together they are one line end
    if after == "'" and right[1] in _CONTRACTION_LETTERS:
        return False  # the right side might now begin with a contraction
    return not ("'" in left[-3:] and (after in "elsdmtvr"))  # or a contraction might be cut in two


def _is_character_border(data: bytes, position: int) -> bool:
    """Return whether decoding the two sides separately gives the same text as decoding them together.

    This holds before every byte that begins a character. A continuation byte belongs to the bytes before
    it, unless four continuation bytes precede it: no character is that long, so all of them are invalid
    and replaced byte by byte.
    """
    if position >= len(data) or data[position] & 0xC0 != 0x80:
        return True
    before = data[max(0, position - 4) : position]
    return len(before) == 4 and all(byte & 0xC0 == 0x80 for byte in before)
