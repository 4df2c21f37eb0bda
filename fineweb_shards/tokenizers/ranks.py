"""Load the ranks of GPT-2, which ship with the package, and derive merges and a `tokenizer.json` from them.

The file's hash is checked at every load: a single changed byte would change the tokens of every run.
"""

from __future__ import annotations

import hashlib
import json
from binascii import a2b_base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from fineweb_shards.errors import ShardError
from fineweb_shards.vocabulary import GPT2

RANKS_FILE = "gpt2.tiktoken"
# For every token of two bytes or more, in the order of the ids, the length of the left of the two tokens that
# it was merged from. Deriving them takes half a second, which every worker would spend.
SPLITS_FILE = "gpt2.splits"
_SPLITS_SHA256 = "e2ff5d25561ae97d2fdc48177cb3dddb1c9a2be0c6bb9e9ce1dd3b1351e483e7"


def load_ranks() -> dict[bytes, int]:
    """Load the 50,256 byte strings of GPT-2 with their ranks, which are their token ids."""
    return parse_ranks(_read(RANKS_FILE))


def load_gpt2_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Load what `derive_merges` returns for the ranks of GPT-2."""
    return parse_splits(_read(SPLITS_FILE), ranks)


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


def parse_splits(data: bytes, ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Parse the bytes of `gpt2.splits`; raise ShardError unless they are the right ones."""
    _check(SPLITS_FILE, data, _SPLITS_SHA256)
    longer = (token for token in token_bytes(ranks) if len(token) > 1)
    return [(token[:length], token[length:]) for token, length in zip(longer, data, strict=True)]


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Parse the bytes of `gpt2.tiktoken`; raise ShardError unless they are exactly the published ones."""
    _check(RANKS_FILE, data, GPT2.sha256)
    pairs = (line.split() for line in data.splitlines())
    return {a2b_base64(token): int(rank) for token, rank in pairs}


def token_bytes(ranks: dict[bytes, int]) -> list[bytes]:
    """Return the bytes of every token in the order of the ids, without EOT."""
    return sorted(ranks, key=ranks.__getitem__)


def derive_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the vocabulary's merge list: for every token, the two tokens that it was merged from.

    Usually there is only one way to cut a token into two tokens of lower rank. If there are several, the
    merge is the one that byte-pair encoding of the token ends with.
    """
    merges = []
    for token in token_bytes(ranks):
        if len(token) == 1:
            continue
        rank = ranks[token]
        older = [
            (token[:i], token[i:])
            for i in range(1, len(token))
            if ranks.get(token[:i], rank) < rank and ranks.get(token[i:], rank) < rank
        ]
        merges.append(older[0] if len(older) == 1 else _merge_until_two(token, ranks))
    return merges


def _merge_until_two(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Encode a token with byte-pair encoding until two parts are left, and return them."""
    parts = [token[i : i + 1] for i in range(len(token))]
    never = len(ranks)  # a rank above all others, for pairs that can't be merged
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], never))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def tokenizer_json(ranks: dict[bytes, int], merges: list[tuple[bytes, bytes]]) -> str:
    """Return a Hugging Face `tokenizer.json` for these ranks and merges, without special tokens.

    Since it has no special token, a literal `<|endoftext|>` in a document is ordinary text.
    """
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return token.decode("latin-1").translate(letters)

    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel"},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "vocab": {spell(token): rank for token, rank in ranks.items()},
                "merges": [[spell(left), spell(right)] for left, right in merges],
            },
        }
    )


def _byte_letters() -> dict[int, str]:
    """Return GPT-2's characters for the 256 bytes: printable Latin-1 unchanged, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte) if byte in printable else chr(next(others)) for byte in range(256)}
