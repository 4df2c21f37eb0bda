"""Describe a vocabulary: how many token ids there are, and which of them separates documents.

Every stage is given this one value. The number of ids decides how wide a token is in memory; how wide it is
in a file, the layout decides (layouts/shard_format.py). Nothing here reads files: `tokenizers/` reads the
file that defines a vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fineweb_shards.types import Dtype, Places, Tokens

_WIDTHS_BYTES = (2, 4)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary. Two are equal if name, hash, size and EOT are; the other fields don't count.

    Without `token_bytes` it is small enough to be sent to workers; `tokenizers/vocabularies.py` adds them.
    """

    name: str
    sha256: str  # of the file that defines it
    size: int  # number of ids, including EOT
    eot: int  # separates documents, and is never encoded from text
    reference: str = field(default="", compare=False)  # the engine whose output is correct by definition
    cut_rule: str | None = field(default=None, compare=False)  # how to cut long documents: tokenizers/cuts.py
    token_bytes: tuple[bytes, ...] = field(default=(), repr=False, compare=False)  # by id, without EOT

    def __post_init__(self) -> None:
        if self.token_bytes and self.eot < len(self.token_bytes):
            raise ValueError(f"{self.name}: EOT {self.eot} must come after the ids that stand for text")

    @property
    def dtype(self) -> Dtype:
        """The narrowest dtype that holds every id; tokens have it in memory."""
        fitting = (width for width in _WIDTHS_BYTES if self.size <= 1 << 8 * width)
        return unsigned_dtype(next(fitting))

    def find_eots(self, tokens: Tokens) -> Places:
        """Return the positions of the EOTs in tokens that were read from a finished file.

        A build does not need this: its encoder notes the positions, and they travel with the tokens.
        """
        return np.flatnonzero(tokens == self.eot)

    def count_eots(self, tokens: Tokens) -> int:
        """Return how many EOTs there are, faster than finding them."""
        return int(np.count_nonzero(tokens == self.eot))


def unsigned_dtype(width_bytes: int) -> Dtype:
    """Return the little-endian dtype for ids of `width_bytes` bytes.

    Files are always read as unsigned: an id that damage made negative is then larger than any vocabulary.
    """
    return np.dtype(f"<u{width_bytes}")


GPT2 = Vocabulary(
    name="gpt2",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    size=50257,
    eot=50256,
    reference="tiktoken",
    cut_rule="gpt2",
)
