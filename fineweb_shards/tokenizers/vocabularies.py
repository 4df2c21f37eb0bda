"""Load the bytes of a vocabulary's tokens.

A manifest and a worker's settings only name the vocabulary (`fineweb_shards.vocabulary`); the bytes are
loaded where they are needed, once per process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fineweb_shards.tokenizers.references import make_reference
from fineweb_shards.vocabulary import Vocabulary


def load_token_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """Return the same vocabulary with the bytes of its tokens; UsageError if its file is not at hand."""
    return vocabulary if vocabulary.token_bytes else _load(vocabulary)


@lru_cache(maxsize=2)
def _load(vocabulary: Vocabulary) -> Vocabulary:
    tokens = list(make_reference(vocabulary).load_token_bytes())
    tokens[vocabulary.eot] = b""
    return replace(vocabulary, token_bytes=tuple(tokens))
