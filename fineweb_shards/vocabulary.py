"""Describe a vocabulary: how many token ids there are, and which of them separates documents.

Every stage gets this one value. The number of ids determines the width of a token in memory; the layout determines its
width in a file (layouts/base.py). `tokenizers/` reads the file that defines a vocabulary; nothing here reads files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fineweb_shards.types import Dtype, Positions, Tokens

CutRule = Literal["gpt2", "words"]  # where a long document may be cut: tokenizers/cuts.py


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary. Two are equal if they give every text the same tokens, with the same EOT between documents,
    whatever their names and wherever their files are. `tokenizers/references.py` loads the bytes of the tokens."""

    name: str = field(compare=False)
    sha256: str  # of the file that defines it
    size: int  # number of ids, including EOT
    eot: int  # separates documents, and is never encoded from text
    # How a text is cut into pieces that are encoded separately: a name in tokenizers/builtin_vocabularies.py, or a
    # regular expression. Empty if the file itself defines it.
    pattern: str = "gpt2"
    reference: str = "tiktoken"  # the engine whose output is correct by definition
    cut_rule: CutRule | None = field(default=None, compare=False)  # None: documents are encoded whole
    folder: str = field(default="", compare=False)  # of its file; empty: the package

    @property
    def dtype(self) -> Dtype:
        """The dtype of tokens in memory: the narrowest that holds every id."""
        return unsigned_dtype(2 if self.size <= 2**16 else 4)

    def find_eots(self, tokens: Tokens) -> Positions:
        """Return the positions of the EOTs in tokens read from a file: a shard, or input that is already tokens. Other
        tokens come with the positions that the encoder noted."""
        return np.flatnonzero(tokens == self.eot)

    def count_eots(self, tokens: Tokens) -> int:
        """Count the EOTs, which is faster than finding them."""
        return int(np.count_nonzero(tokens == self.eot))


def unsigned_dtype(width_bytes: int) -> Dtype:
    """Return the little-endian dtype for ids of `width_bytes` bytes. It is always unsigned, so that an id that damage
    made negative is larger than any vocabulary."""
    return np.dtype(f"<u{width_bytes}")


GPT2 = Vocabulary(
    name="gpt2",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    size=50257,
    eot=50256,
    cut_rule="gpt2",
)
