"""Find the reference of a vocabulary: the engine that its file was made for. It must be that one: with the same
vocabulary, Hugging Face's tokenizers and tiktoken differ on one document in four.

Manifests and workers' settings only name the vocabulary (`fineweb_shards.vocabulary`); the bytes of its tokens are
loaded when needed, once per process. With them `decode` turns tokens into bytes, for inspection and reports.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import UsageError
from fineweb_shards.system.shell_commands import install_command
from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.sentencepiece_engine import SentencePieceEngine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.tokenizers_engine import TokenizersEngine
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import Vocabulary

BOUNDARY = b"\xff"  # EOT, as decoded: UTF-8 text never contains this byte
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
REFERENCES: dict[str, type[Reference]] = {
    reference.name: reference for reference in (TiktokenEngine, TokenizersEngine, SentencePieceEngine)
}


def require_reference(name: str, file: str) -> None:
    """Raise UsageError if the package that encodes a file of this kind is not installed."""
    if not REFERENCES[name].installed_version():
        raise UsageError(
            f"{file}: such a tokenizer needs the package {name}, which is not installed here.",
            f"Install it: {install_command(name)}",
        )


def make_reference(vocabulary: Vocabulary) -> Reference:
    """Return this process's reference of a vocabulary; cached, because loading tiktoken takes 0.1 s and 30 MB."""
    return _make_reference(vocabulary, vocabulary.folder)


@lru_cache(maxsize=2)
def _make_reference(vocabulary: Vocabulary, folder: str) -> Reference:
    """`folder` is only part of the cache key: equal vocabularies may have their files in different folders."""
    require_reference(vocabulary.reference, vocabulary.name)
    return REFERENCES[vocabulary.reference](vocabulary)


@lru_cache(maxsize=2)
def load_token_bytes(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """Return the bytes of a vocabulary's tokens, by id; empty for EOT and all other ids that no text contains.
    UsageError if its file is missing."""
    tokens = list(make_reference(vocabulary).load_token_bytes())
    tokens[vocabulary.eot] = b""
    return tuple(tokens)


def decode(tokens: Tokens, vocabulary: Vocabulary) -> bytes:
    """Return the bytes of tokens, with BOUNDARY for each EOT.

    Invalid ids, and the token of the byte BOUNDARY, become the replacement character, so that a BOUNDARY in the result
    is always an EOT.
    """
    if not len(tokens):
        return b""
    data, all_starts, all_lengths = _byte_table(vocabulary)
    ids = np.minimum(tokens, np.int64(vocabulary.size))
    lengths = all_lengths[ids]
    ends = np.cumsum(lengths)
    # Computing each output byte's position in the table is four times as fast as joining pieces.
    positions = np.repeat(all_starts[ids] - (ends - lengths), lengths)
    positions += np.arange(ends[-1])
    return bytes(data[positions].data)


@cache
def _byte_table(vocabulary: Vocabulary) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the joined bytes of all tokens, with their starts and lengths. After the last token comes the replacement
    for all invalid ids."""
    spelled = [token.replace(BOUNDARY, _REPLACEMENT) for token in load_token_bytes(vocabulary)] + [_REPLACEMENT]
    spelled[vocabulary.eot] = BOUNDARY
    lengths = np.array([len(token) for token in spelled], np.int64)
    return np.frombuffer(b"".join(spelled), np.uint8), np.cumsum(lengths) - lengths, lengths
