"""Mending the tokens around a seam: a cut inside a piece, which may have torn a token.

Byte-pair encoding is local: a sequence of tokens is the encoding of its bytes exactly if every two
neighbours are the encoding of *their* bytes. So when two halves were encoded apart, only tokens near
the seam can be wrong. We encode a window around it again, in one go, and widen the window until its
first token is one the left half has there and its last token is one the right half has there. Then
all neighbours fit, and the whole is what one call would have made.

Usually a dozen tokens do. In a run of one repeated character the right half may be out of step all the
way; then the window grows to its end, which is bounded by the length of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fineweb_shards.errors import ExactnessError
from fineweb_shards.tokenizers.base import Ids
from fineweb_shards.tokenizers.cuts import WHITE_SPACE

_FIRST_WINDOW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Mend:
    """Replace the last `left_tokens` and the first `right_tokens` around the seam by `middle`."""

    left_tokens: int
    middle: Ids
    right_tokens: int


class SeamMender:
    """Joins token arrays at seams, with the reference tokenizer."""

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Sequence[bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes

    def mend(self, left: Ids, right: Ids, *, left_is_whole: bool) -> Mend:
        """How to join `left` and `right`, the tokens of one document on both sides of a seam.

        `left_is_whole`: the left side begins where a piece begins, so that the window may reach
        back to it without finding a token in common.
        """
        want_left = want_right = _FIRST_WINDOW_TOKENS
        while True:
            n_left = self._widen_left(left, want_left)
            n_right = self._widen_right(right, want_right)
            window = b"".join(
                self._token_bytes[token]
                for token in (*left[len(left) - n_left :].tolist(), *right[:n_right].tolist())
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

    def _widen_left(self, tokens: Ids, wanted: int) -> int:
        """At least `wanted` tokens from the end, beginning with a whole character."""
        count = min(wanted, len(tokens))
        while count < len(tokens) and self._continues_character(int(tokens[-count])):
            count += 1
        return count

    def _widen_right(self, tokens: Ids, wanted: int) -> int:
        """At least `wanted` tokens from the start, ending with a whole character that is no white space."""
        count = min(wanted, len(tokens))
        while count < len(tokens) and (
            self._continues_character(int(tokens[count])) or self._ends_in_white_space(tokens[:count])
        ):
            count += 1
        return count

    def _ends_in_white_space(self, tokens: Ids) -> bool:
        """At the end of a text a run of white space stays whole, before a word it does not: a window
        that ends there would be split differently from the whole."""
        tail = b"".join(self._token_bytes[token] for token in tokens[-8:].tolist())
        return tail.decode("utf-8", "ignore")[-1:] in WHITE_SPACE

    def _continues_character(self, token: int) -> bool:
        return self._token_bytes[token][0] & 0xC0 == 0x80
