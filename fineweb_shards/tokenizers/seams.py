"""Repair ("mend") the tokens around a seam: a cut inside a piece, which may have cut a token in two.

Byte-pair encoding is local: a sequence of tokens is the encoding of its bytes exactly if every two
neighbours are the encoding of *their* bytes. So if two halves were encoded separately, only tokens near
the seam can be wrong. A window around the seam is encoded again, in one call, and widened until its
first token equals the left half's token there and its last token equals the right half's token there.
Then all neighbours fit, and the result is what one call for the whole text would have returned.

Usually a window of a dozen tokens is enough. In a run of one repeated character every token of the right
half may differ; then the window grows to the end of the right half, which is bounded by the batch size.
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

        `left_is_whole` says that the left side begins where a piece begins: a window that covers all of it
        is then correct even if its first token differs.
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
        """Return how many tokens to take from the end: `wanted`, or more to begin with a whole character."""
        count = min(wanted, len(tokens))
        while count < len(tokens) and self._continues_character(int(tokens[-count])):
            count += 1
        return count

    def _widen_right(self, tokens: Ids, wanted: int) -> int:
        """Return how many tokens to take from the start: `wanted`, or more.

        They must end with a whole character that is not white space.
        """
        count = min(wanted, len(tokens))
        while count < len(tokens) and (
            self._continues_character(int(tokens[count])) or self._ends_in_white_space(tokens[:count])
        ):
            count += 1
        return count

    def _ends_in_white_space(self, tokens: Ids) -> bool:
        """Return whether the text of the tokens ends in white space.

        A window that ends there would be split differently from the whole text: a run of white space stays
        in one piece at the end of a text, but not before a word.
        """
        tail = b"".join(self._token_bytes[token] for token in tokens[-8:].tolist())
        return tail.decode("utf-8", "ignore")[-1:] in WHITE_SPACE

    def _continues_character(self, token: int) -> bool:
        """Return whether a token begins with a UTF-8 continuation byte."""
        return self._token_bytes[token][0] & 0xC0 == 0x80
