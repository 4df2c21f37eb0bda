"""Where a long text may be cut in two without changing its tokens.

GPT-2 first splits a text into pieces with a pattern, then encodes every piece for itself:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A *safe* cut lies where a piece must begin, whatever stands before or after:

- between a character that is not white space and one that is: no piece holds the two in this order;
- between two ASCII characters of different classes (letter, digit, other), unless the first is an
  apostrophe, which may begin a contraction.

In English such a place comes every few bytes. Elsewhere (Chinese, base64, a million dashes) there may
be none for gigabytes. Then the text is cut at a *seam*: a place inside a piece where both halves are
still split as the whole was, but a token may have been torn. seams.py mends it.

Letters are only ever decided in ASCII: Unicode tables differ between Python and tiktoken. White
space is safe to name, since its list has not changed since Unicode 6.3 (a test asks tiktoken).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# Everything a cut looks at lies this close to it, in bytes (at most three characters).
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
    """A place between two bytes; `seam` says that a token may have been torn there."""

    position: int
    seam: bool


def find_cut(data: bytes, low: int, high: int) -> Cut | None:
    """The last good place to cut in `data[low:high]`, safe if there is one, else a seam.

    None only where the segment is shorter than a few characters. `data` should hold CONTEXT_BYTES
    more on both sides, where the text goes on there.
    """
    stop = high
    while stop > low:  # backwards, a little at a time: the last match is what we want
        start = max(low, stop - 4096)
        # One byte more on the right, for the look-ahead of a match that ends at `stop`.
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
    if not _is_character_border(data, position):
        return False
    left = data[max(0, position - CONTEXT_BYTES) : position].decode("utf-8", "replace")
    right = data[position : position + CONTEXT_BYTES].decode("utf-8", "replace")
    if len(left) < 3 or len(right) < 3:
        return False
    before, after = left[-1], right[0]
    if before in WHITE_SPACE and after not in WHITE_SPACE:
        return False  # the space belongs to the word behind it
    if before == "\r" and after == "\n":
        return False  # one line end
    if after == "'" and right[1] in _CONTRACTION_LETTERS:
        return False  # might become a contraction that it was not
    return not ("'" in left[-3:] and (after in "elsdmtvr"))  # might be one that is cut in two


def _is_character_border(data: bytes, position: int) -> bool:
    """Whether decoding the two sides apart gives what decoding them together gives.

    Before a byte that begins a character it always does. A continuation byte belongs to what stands
    before it, unless four others stand there: no character is that long, so all of it is garbage,
    replaced byte by byte.
    """
    if position >= len(data) or data[position] & 0xC0 != 0x80:
        return True
    before = data[max(0, position - 4) : position]
    return len(before) == 4 and all(byte & 0xC0 == 0x80 for byte in before)
