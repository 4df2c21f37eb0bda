"""Find texts with characters that an engine and its reference may classify differently.

Their tables of letters, digits and white space come from different versions of Unicode. They agree on characters older
than both. A text with an unassigned or recent character is left to the reference, and so is one with a character that
the engine misclassified in the trial.
"""

from __future__ import annotations

import itertools
import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

# Letters, digits and marks of Unicode 17, which gigatoken supports and tiktoken does not; and the unassigned code
# points after the last of them.
_UNICODE_17 = (
    "88f c5c cdc 1acf-1add 1ae0-1aeb a7ce-a7cf a7d2 a7d4 a7f1 10940-10959 10ec5-10ec7 11db0-11ddb "
    "11de0-11de9 16ea0-16eb8 16ebb-16ed3 16ff2-16ff6 187f8-187ff 18d09-18d1e 18d80-18df2 1e6c0-1e6ff "
    "2b73a-2b73f 2cea2-2cead 323b0-3ffff"
)
# Where scripts are still being added.
_GROWING = ((0x800, 0x2000), (0xA000, 0xB000), (0x10000, 0x32400))
_BLOCK = 256
_GROWING_LEADS = (0xE0, 0xE1, 0xEA, 0xF0)  # the first bytes of their characters in UTF-8
_END = 0x40000  # the planes from here on are empty, or for private use
_UNASSIGNED = "Cn"
# Chinese, Korean, private use, Tangut, Chinese again.
_ALIKE = (
    (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0x17000, 0x187F8),
    (0x20000, 0x2A6E0), (0x2A700, 0x2B73A), (0x2B740, 0x2CEA2), (0x2CEB0, 0x2EBE1), (0x30000, 0x323B0),
)  # fmt: skip
_ONE_IN = 61


class UnicodeDifferences:
    """The characters that are left to the reference: new ones, and the given ones."""

    def __init__(self, characters: str = "") -> None:
        self._differs = _new_characters().copy()
        self._differs[[ord(character) for character in characters]] = True
        self._leads = {*_GROWING_LEADS, *(character.encode()[0] for character in characters)}

    def is_in(self, data: bytes) -> bool:
        """Return whether a text, as UTF-8, contains one of the characters. Quick if it has none of their first
        bytes."""
        return any(data.find(lead) >= 0 and bool(self._differs[_points(data, lead)].any()) for lead in self._leads)


def _points(data: bytes, lead: int) -> NDArray[np.intp]:
    """Return the code points of all characters that begin with the byte `lead`."""
    array = np.frombuffer(data, np.uint8)
    further = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
    positions = np.flatnonzero(array[: max(0, len(array) - further)] == lead)
    points = np.full(len(positions), lead & (0x3F >> further), np.intp)
    for i in range(1, further + 1):
        points = points << 6 | array[positions + i] & 0x3F
    return np.minimum(points, _END - 1)  # not a character


@cache
def _new_characters() -> NDArray[np.bool_]:
    """Return for each code point whether it is new, or unassigned according to this Python."""
    new = np.zeros(_END, np.bool_)
    for span in _UNICODE_17.split():
        first, _, last = span.partition("-")
        new[int(first, 16) : int(last or first, 16) + 1] = True
    for begin in itertools.chain.from_iterable(range(*span, _BLOCK) for span in _GROWING):
        block = np.arange(begin, begin + _BLOCK, dtype="<u4").tobytes().decode("utf-32-le")
        if not block.isprintable():  # most blocks are, hence assigned: ten times as fast
            categories = map(unicodedata.category, block)
            new[begin : begin + _BLOCK] |= [category == _UNASSIGNED for category in categories]
    return new


def agreed_characters() -> list[str]:
    """Return the other characters, on which engines are compared; of large, long-established scripts, whose characters
    are all alike, only some."""
    chosen = ~_new_characters()
    for begin, end in _ALIKE:
        chosen[begin + 1 : end - 1] &= np.arange(begin + 1, end - 1) % _ONE_IN == 0
    points = np.flatnonzero(chosen).tolist()
    return [chr(point) for point in points if not 0xD800 <= point < 0xE000]
