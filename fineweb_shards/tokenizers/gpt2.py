"""Load GPT-2's ranks and merges, which ship with the package.

The files' hashes are checked at every load: a single changed byte would change the tokens of every run.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from fineweb_shards.errors import ShardError
from fineweb_shards.tokenizers.rank_file import Ranks, sort_ranks
from fineweb_shards.tokenizers.tokenizer_json import Merges
from fineweb_shards.vocabulary import GPT2

RANKS_FILE = "gpt2.tiktoken"
# For every token of two bytes or more, in the order of the ids, the length of the left of the two tokens that
# it was merged from. Deriving them takes half a second, which every worker would spend.
SPLITS_FILE = "gpt2.splits"
_SPLITS_SHA256 = "e2ff5d25561ae97d2fdc48177cb3dddb1c9a2be0c6bb9e9ce1dd3b1351e483e7"


def load_gpt2_ranks() -> Ranks:
    """Load the 50,256 byte strings of GPT-2 with their ranks, which are their token ids."""
    return check_gpt2_ranks(_read(RANKS_FILE))


def load_gpt2_merges(ranks: Ranks) -> Merges:
    """Load the merges from which GPT-2's ranks were made, one for each token of two bytes or more."""
    return parse_splits(_read(SPLITS_FILE), ranks)


def check_gpt2_ranks(data: bytes) -> Ranks:
    """Parse the bytes of `gpt2.tiktoken`; raise ShardError unless they are exactly the published ones."""
    _check(RANKS_FILE, data, GPT2.sha256)
    # No line has to be looked at: they are the published ones, in the order of the ranks.
    return {token: rank for rank, token in enumerate(map(a2b_base64, data.split()[::2]))}


@contextmanager
def open_gpt2_ranks() -> Iterator[Path]:
    """Provide the path of the checked file of ranks, for a library that reads it itself."""
    with resources.as_file(resources.files(__package__) / RANKS_FILE) as path:
        _check(RANKS_FILE, path.read_bytes(), GPT2.sha256)
        yield path


def _read(name: str) -> bytes:
    return (resources.files(__package__) / name).read_bytes()


def _check(name: str, data: bytes, expected: str) -> None:
    """Raise ShardError unless a file of the package is exactly the one that was released."""
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise ShardError(
            f"The GPT-2 vocabulary in the package is damaged: {name} has SHA-256 {found}, not {expected}.",
            "Install fineweb_shards again.",
        )


def parse_splits(data: bytes, ranks: Ranks) -> Merges:
    """Parse the bytes of `gpt2.splits`; raise ShardError unless they are the right ones."""
    _check(SPLITS_FILE, data, _SPLITS_SHA256)
    longer = (token for token, _ in sort_ranks(ranks) if len(token) > 1)
    return [(token[:length], token[length:]) for token, length in zip(longer, data, strict=True)]
