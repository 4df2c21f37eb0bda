"""Find where documents begin in the tokens of a finished file, by the EOTs in it.

If EOT comes after documents, the first token of a file begins a document only if the file before it ended
with an EOT, or if there is none before it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Protocol

import numpy as np

from fineweb_shards.reading.token_file import BLOCK_TOKENS, TokenFile, open_file_in
from fineweb_shards.types import Positions, Tokens
from fineweb_shards.vocabulary import Vocabulary


class TokenSequence(Protocol):
    """Tokens that are read in slices, such as an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: slice, /) -> Tokens: ...


def document_starts(
    tokens: TokenSequence, vocabulary: Vocabulary, *, eot_first: bool, starts_mid_document: bool
) -> Positions:
    """Return where documents begin: at their EOT, or at their first token if EOT comes after them.

    `starts_mid_document` only counts if EOT comes after.
    """
    blocks = (tokens[begin : begin + BLOCK_TOKENS] for begin in range(0, len(tokens), BLOCK_TOKENS))
    found = [vocabulary.find_eots(block) + number * BLOCK_TOKENS for number, block in enumerate(blocks)]
    eots = np.concatenate([np.empty(0, np.int64), *found])
    if eot_first:
        return eots
    first = [] if starts_mid_document else [0]
    starts = np.concatenate([np.array(first, np.int64), eots + 1])
    return starts[starts < len(tokens)]


def ends_mid_document(file: TokenFile, vocabulary: Vocabulary) -> bool:
    """Return whether the last document of a file continues in the next, where EOT comes after documents."""
    last = file.read_last()
    return len(last) > 0 and int(last[0]) != vocabulary.eot


def contains_eot(file: TokenFile, vocabulary: Vocabulary) -> bool:
    """Return whether a file has any EOT."""
    return any(vocabulary.count_eots(block) for block in file.blocks())


def file_before(file: TokenFile) -> TokenFile | None:
    """Open the file that comes before a shard in the stream, by its name; None if there is none."""
    path = PurePosixPath(file.name)
    stem = path.stem.rstrip("0123456789")
    number = path.stem[len(stem) :]
    if number and not number.strip("0"):  # where both splits have a number 0, neither continues the other
        return None
    before = f"{int(number) - 1:0{len(number)}d}" if number else ""
    # The last is torchtitan's, whose file for training is only called tokens.bin.
    for name in (f"{stem}{before}", f"{stem.replace('train', 'val')}{before}", f"val_{path.stem}"):
        previous = f"{name}{path.suffix}"
        if name != path.stem and file.folder.store.named_bytes(previous) is not None:
            return open_file_in(file.folder, previous, file.dtype)
    return None
