"""What a token id means: the vocabulary, one value that every stage is given.

It says how many ids there are, which of them stands between documents, and so how wide an id must be in
memory. How wide it is in a file, the layout decides together with it (layouts/shard_format.py). Here are
facts only: reading a vocabulary's own file is done in `tokenizers/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fineweb_shards.types import Dtype, Places, Tokens

_WIDTHS_BYTES = (2, 4)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Two are the same if name, hash, size and EOT are; how it is encoded may be told by somebody else.

    Without `token_bytes` it is small, and can be sent anywhere; see `tokenizers.load_token_bytes`.
    """

    name: str
    sha256: str  # of the file that defines it
    size: int  # ids, EOT included
    eot: int  # stands between documents, and is never made from text
    reference: str = field(default="", compare=False)  # the engine that decides what is right
    cut_rule: str | None = field(default=None, compare=False)  # for long documents: tokenizers/cuts.py
    token_bytes: tuple[bytes, ...] = field(default=(), repr=False, compare=False)  # by id; text has no others

    @property
    def dtype(self) -> Dtype:
        """The narrowest that holds every id: what tokens are in memory."""
        fitting = (width for width in _WIDTHS_BYTES if self.size <= 1 << 8 * width)
        return unsigned_dtype(next(fitting))

    def find_eots(self, tokens: Tokens) -> Places:
        """Where the EOTs are. For tokens that come from a finished file: in a build the borders are known
        from the encoder on and carried along, and nobody searches."""
        return np.flatnonzero(tokens == self.eot)


def unsigned_dtype(width_bytes: int) -> Dtype:
    """Little-endian ids of so many bytes. Files are always read so: an id that damage has made negative is
    then larger than any vocabulary."""
    return np.dtype(f"<u{width_bytes}")


GPT2 = Vocabulary(
    name="gpt2",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    size=50257,
    eot=50256,
    reference="tiktoken",
    cut_rule="gpt2",
)
