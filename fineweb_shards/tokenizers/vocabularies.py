"""Load the bytes of a vocabulary's tokens. The only vocabulary so far is GPT-2.

A manifest and a worker's settings only name the vocabulary (`fineweb_shards.vocabulary`); the bytes are
loaded where they are needed, once per process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path

from fineweb_shards.errors import UsageError
from fineweb_shards.tokenizers.ranks import load_ranks, open_gpt2_ranks, token_bytes
from fineweb_shards.vocabulary import GPT2, Vocabulary


@cache
def load_gpt2() -> Vocabulary:
    """Load GPT-2 with the bytes of its tokens."""
    return replace(GPT2, token_bytes=tuple(token_bytes(load_ranks())))


_LOADERS: dict[Vocabulary, Callable[[], Vocabulary]] = {GPT2: load_gpt2}
_FILES: dict[Vocabulary, Callable[[], AbstractContextManager[Path]]] = {GPT2: open_gpt2_ranks}


def load_token_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """Return the same vocabulary with the bytes of its tokens; UsageError if they are not known."""
    if vocabulary.token_bytes:
        return vocabulary
    _require_known(vocabulary)
    return _LOADERS[vocabulary]()


def open_ranks(vocabulary: Vocabulary) -> AbstractContextManager[Path]:
    """Provide the checked file that defines a vocabulary; UsageError if it is not known."""
    _require_known(vocabulary)
    return _FILES[vocabulary]()


def _require_known(vocabulary: Vocabulary) -> None:
    if vocabulary not in _LOADERS:
        known = ", ".join(one.name for one in _LOADERS)
        raise UsageError(
            f"The vocabulary {vocabulary.name} ({vocabulary.size:,} ids) is not known here, so its tokens "
            "can't be decoded.",
            f"Known are: {known}. `verify`, `export` and the loader work without it.",
        )
