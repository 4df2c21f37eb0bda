"""Find places to cut a long text without changing its tokens, or so that its tokens can be repaired afterwards.

A tokenizer first splits a text into pieces with a pattern, then encodes each piece separately. A *safe* cut is at a
place where a piece must begin, whatever comes before or after. That depends on the pattern, so each vocabulary names
its rule (`Vocabulary.cut_rule`):

**gpt2**, for this pattern alone:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

- between a character that is not white space and one that is: no piece contains both in this order;
- between two ASCII characters of different classes (letter, digit, other), unless the first is an
  apostrophe, which may begin a contraction.

Text without such a place (Chinese, base64, a million dashes) is cut at a *seam*: inside a piece, where the other
boundaries between pieces stay the same, but a token may be cut in two. `SeamMender` repairs the tokens there: it
encodes a window around the seam again, and widens it until its ends agree with both halves (docs/architecture.md says
why that suffices). A dozen tokens are usually enough. In a run of one repeated character every token of the right half
may differ; then the window grows to the end of the right half, which is bounded by the batch size.

**words**, for the family of patterns derived from it (cl100k, o200k, Llama 3, Qwen, nanochat): after a letter,
before a space or a Chinese comma or full stop. That is safe for three reasons:

1. A piece begins there: in these patterns a letter is followed only by letters, marks, and the apostrophe and
   letters of a contraction.
2. The text before it is split in the same way without the text after it. It ends in a letter, so neither
   `\\s+(?!\\S)` nor `\\s+$` can see its end, and to continue, an alternative would need one of the characters
   of (1), none of which is a space.
3. The text after it is split in the same way without the text before it: no pattern looks back.

    pattern            what may come after a letter      by this alternative
    GPT-2              letters, or none                  ` ?\\p{L}+`; `'(?:[sdmt]|ll|ve|re)`
    cl100k, nanochat   the same                          `[^\\r\\n\\p{L}\\p{N}]?\\p{L}+`; `'(?i:[sdmt]|…)`
    Llama 3, Qwen      the same: they differ from cl100k in digits and line ends only
    o200k              letters, marks, a contraction     `[\\p{Lu}…\\p{M}]*[\\p{Ll}…\\p{M}]+(?i:'s|'t|…)?`

So no mark, apostrophe or digit may follow, and none does: the next character is one of three. This rule has no seams;
text without such a place is encoded in one piece.

**None**: the pattern is unknown, or there is a normalizer, or no pattern at all (SentencePiece). Such text can't be
cut.

Letters come from ranges that are letters in every version of Unicode, because the tables of Python and tiktoken differ.
White space can be listed: it has not changed since Unicode 6.3 (a test compares the list with tiktoken).

Long documents are cut into *passages*, which an engine encodes separately, without copying them. So memory is bounded,
and no engine receives a text that it can't handle (tiktoken panics on a million spaces, tiktoken#400).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fineweb_shards.errors import ExactnessError
from fineweb_shards.texts import Ids, TextBuffer, Texts
from fineweb_shards.vocabulary import CutRule

WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# A decision about a cut depends on this many bytes on each side of it (at most three characters).
CONTEXT_BYTES = 16
# The longest text without a place to cut that is encoded; longer ones are refused. Fixed, because the output must not
# depend on the machine. run/resources.py accounts for its memory.
LONGEST_UNCUT_BYTES = 4 * 2**20

# Each matches the character before a safe cut.
_SAFE: dict[CutRule, re.Pattern[bytes]] = {
    "gpt2": re.compile(
        rb"[!-~](?=[ \t\r\n])"
        rb"|[A-Za-z](?=[!-@\[-`{-~])"
        rb"|[0-9](?=[!-/:-~])"
        rb"|[!-&(-/:-@\[-`{-~](?=[0-9A-Za-z])"
    ),
    "words": re.compile(
        rb"(?:[A-Za-z]"
        rb"|[\xd0\xd1][\x80-\xbf]"  # Cyrillic: U+0400 to U+047F
        rb"|\xd8[\xa7-\xba]"  # Arabic: U+0627 to U+063A
        rb"|\xe0\xa4[\x95-\xb9]"  # Devanagari: U+0915 to U+0939
        rb"|\xe4[\xb8-\xbf][\x80-\xbf]|[\xe5-\xe8][\x80-\xbf]{2}"  # Chinese: U+4E00 to U+8FFF
        rb"|\xe3\x81[\x81-\xbf]|\xe3\x82[\x80-\x93]"  # Japanese: U+3041 to U+3093
        rb"|[\xeb\xec][\x80-\xbf]{2}"  # Korean: U+B000 to U+CFFF
        rb")(?= |\xef\xbc\x8c|\xe3\x80\x82)"  # a space, U+FF0C, U+3002
    ),
}
_STEP_BYTES = 4096
_LONGEST_CHARACTER_BYTES = 3  # in the patterns above
_SEAM_WINDOW_BYTES = 64 * 1024
_FIRST_WINDOW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between two bytes; a `seam` may cut a token in two."""

    position: int
    seam: bool = False


def find_cut(data: bytes | memoryview, low: int, high: int, rule: CutRule | None) -> Cut | None:
    """Return the last safe cut in `data[low:high]`; without one, the last seam if the rule has seams.

    With `gpt2`, None means that the range is only a few characters long. If the text continues beyond the range, `data`
    should include CONTEXT_BYTES of it on each side.
    """
    if rule is None:
        return None
    stop = high
    while stop > low:  # backwards in small steps, because only the last match is needed
        start = max(low, stop - _STEP_BYTES)
        good = [end for end in _safe_cuts(data, start, stop, rule) if end <= stop]
        if good:
            return Cut(good[-1])
        stop = start
    if rule == "gpt2":
        for position in range(high, low, -1):
            if _may_be_seam(data, position):
                return Cut(position, seam=True)
    return None


def _safe_cuts(data: bytes | memoryview, low: int, high: int, rule: CutRule) -> Iterator[int]:
    """Yield the safe cuts in `data[low:high]`, and perhaps a few after it, in order."""
    first, last = max(low - _LONGEST_CHARACTER_BYTES, 0), high + _LONGEST_CHARACTER_BYTES
    ends = (match.end() for match in _SAFE[rule].finditer(data, first, last))
    return (end for end in ends if low < end)


def _may_be_seam(data: bytes | memoryview, position: int) -> bool:
    """Return whether a cut at `position` leaves all other boundaries between pieces as they are."""
    # Decoding both sides separately must give the same text as decoding them together. That holds before any byte that
    # begins a character. A continuation byte belongs to the bytes before it, unless four continuation bytes precede it:
    # no character is that long, so all of them are invalid and replaced byte by byte.
    if position < len(data) and data[position] & 0xC0 == 0x80:
        preceding = data[max(0, position - 4) : position]
        if len(preceding) < 4 or any(byte & 0xC0 != 0x80 for byte in preceding):
            return False
    left = bytes(data[max(0, position - CONTEXT_BYTES) : position]).decode("utf-8", "replace")
    right = bytes(data[position : position + CONTEXT_BYTES]).decode("utf-8", "replace")
    if len(left) < 3 or len(right) < 3:
        return False
    before, after = left[-1], right[0]
    if before in WHITE_SPACE and after not in WHITE_SPACE:
        return False  # the space belongs to the word that follows
    if before == "\r" and after == "\n":
        return False  # one line end
    if after == "'" and right[1] in "sdmtlvr":
        return False  # the right side might now begin with a contraction
    return not ("'" in left[-3:] and (after in "elsdmtvr"))  # or a contraction might be cut in two


def cut_passages(texts: Texts, passage_bytes: int, rule: CutRule | None) -> tuple[Texts, list[list[bool]]]:
    """Cut each text into passages of about `passage_bytes`, or longer without a place to cut. Return them, and for each
    text whether the cuts before its passages are seams."""
    buffers, seams = [], []
    for buffer in texts.buffers:
        data = memoryview(buffer.data)
        starts, ends = [], []
        for start, end in zip(buffer.starts.tolist(), buffer.ends.tolist(), strict=True):
            cuts = find_cuts(data[start:end], passage_bytes, rule)
            boundaries = [start, *(start + cut.position for cut in cuts), end]
            starts += boundaries[:-1]
            ends += boundaries[1:]
            seams.append([False, *(cut.seam for cut in cuts)])
        buffers.append(TextBuffer(buffer.data, np.array(starts, np.int64), np.array(ends, np.int64)))
    return Texts(*buffers), seams


def find_cuts(text: memoryview, piece_bytes: int, rule: CutRule | None) -> list[Cut]:
    """Return where to cut a text. Without seams, a piece of more than `piece_bytes` contains no safe cut, so that its
    length depends only on the text."""
    if rule is None:
        return []
    has_seams = rule == "gpt2"
    cuts: list[Cut] = []
    position = 0
    while len(text) - position > piece_bytes + (CONTEXT_BYTES if has_seams else 0):
        target = position + piece_bytes
        # A seam near the target is better than a safe cut far from it.
        low = max(position + CONTEXT_BYTES, target - _SEAM_WINDOW_BYTES) if has_seams else position
        cut = find_cut(text, low, target, rule)
        if cut is None:
            safe = next(_safe_cuts(text, target, len(text), rule), None)
            if safe is None:
                break
            cut = Cut(safe)
        cuts.append(cut)
        position = cut.position
    return cuts


@dataclass(frozen=True, slots=True)
class Mend:
    """A repair: replace the last `left_tokens` and the first `right_tokens` at the seam by `middle`."""

    left_tokens: int
    middle: Ids
    right_tokens: int


class SeamMender:
    """Computes how to join token arrays at seams; `encode` is the reference tokenizer."""

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Sequence[bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes

    def mend(self, left: Ids, right: Ids, *, left_is_whole: bool) -> Mend:
        """Return how to join `left` and `right`, the tokens of one document on both sides of a seam.

        `left_is_whole` means that the left side begins with a piece: a window that covers it is then correct even if
        the first token differs.
        """
        want_left = want_right = _FIRST_WINDOW_TOKENS
        while True:
            n_left = min(want_left, len(left))
            while n_left < len(left) and self._continues_character(int(left[-n_left])):
                n_left += 1
            n_right = self._widen_right(right, want_right)
            window = b"".join(
                self._token_bytes[token] for token in (*left[len(left) - n_left :].tolist(), *right[:n_right].tolist())
            )
            middle = self._encode(window.decode("utf-8"))
            left_fits = (left_is_whole and n_left == len(left)) or middle[0] == left[-n_left]
            right_fits = n_right == len(right) or middle[-1] == right[n_right - 1]
            if left_fits and right_fits:
                return Mend(n_left, np.array(middle, left.dtype), n_right)
            if not left_fits:
                if n_left == len(left):
                    raise ExactnessError("A document's tokens could not be joined at a cut.")
                want_left *= 4
            if not right_fits:
                want_right *= 4

    def _widen_right(self, tokens: Ids, wanted: int) -> int:
        """Return how many tokens to take from the start: `wanted`, or more, to end with a whole character that is not
        white space. A window that ends in white space would be split differently from the whole text: a run of it is
        one piece at the end of a text, but not before a word."""
        count = min(wanted, len(tokens))
        while count < len(tokens):
            tail = b"".join(self._token_bytes[token] for token in tokens[max(0, count - 8) : count].tolist())
            ends_in_white_space = tail.decode("utf-8", "ignore")[-1:] in WHITE_SPACE
            if not ends_in_white_space and not self._continues_character(int(tokens[count])):
                break
            count += 1
        return count

    def _continues_character(self, token: int) -> bool:
        return self._token_bytes[token][0] & 0xC0 == 0x80
