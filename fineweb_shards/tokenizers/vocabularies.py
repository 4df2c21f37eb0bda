"""The vocabularies that are known here, with the bytes of their tokens: GPT-2.

A manifest, or a worker's orders, only tell which one it is (`fineweb_shards.vocabulary`); the bytes are read
where they are needed, once in a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from fineweb_shards.errors import UsageError
from fineweb_shards.tokenizers.ranks import load_ranks, token_bytes
from fineweb_shards.vocabulary import GPT2, Vocabulary


@cache
def load_gpt2() -> Vocabulary:
    """GPT-2 with the bytes of its tokens."""
    return replace(GPT2, token_bytes=tuple(token_bytes(load_ranks())))


_LOADERS: dict[Vocabulary, Callable[[], Vocabulary]] = {GPT2: load_gpt2}


def load_token_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """The same vocabulary with the bytes of its tokens."""
    if vocabulary.token_bytes:
        return vocabulary
    try:
        return _LOADERS[vocabulary]()
    except KeyError:
        known = ", ".join(one.name for one in _LOADERS)
        raise UsageError(
            f"What the tokens of the vocabulary {vocabulary.name} ({vocabulary.size:,} ids) stand for is not "
            "known here.",
            f"Known are: {known}. `verify`, `export` and the loader work without it.",
        ) from None
