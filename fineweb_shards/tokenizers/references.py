"""Find the reference of a vocabulary: the engine that its file was made for. None is the judge of another's
file: Hugging Face's tokenizers and tiktoken differ about one document in four under the same vocabulary.

A manifest and a worker's settings only name the vocabulary (`fineweb_shards.vocabulary`); the bytes of its
tokens are loaded where they are needed, once per process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fineweb_shards.errors import UsageError
from fineweb_shards.system.shell_commands import install_command
from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.sentencepiece_engine import SentencePieceEngine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.tokenizers_engine import TokenizersEngine
from fineweb_shards.vocabulary import Vocabulary

REFERENCES: dict[str, type[Reference]] = {
    reference.name: reference for reference in (TiktokenEngine, TokenizersEngine, SentencePieceEngine)
}


def require_reference(name: str, file: str) -> None:
    """Raise UsageError if the package that encodes a file of this kind is not installed."""
    reference = REFERENCES[name]
    if not reference.installed_version():
        raise UsageError(
            f"{file}: such a tokenizer needs the package {name}, which is not installed here.",
            f"Install it: {install_command(name)}",
        )


def make_reference(vocabulary: Vocabulary) -> Reference:
    """Return the reference of a vocabulary: one for all that need it in a process, because loading tiktoken
    takes a tenth of a second and 30 MB."""
    return _make_reference(vocabulary, vocabulary.folder)


@lru_cache(maxsize=2)
def _make_reference(vocabulary: Vocabulary, folder: str) -> Reference:
    """`folder` is only a part of the key: vocabularies are equal wherever their files are."""
    require_reference(vocabulary.reference, vocabulary.name)
    return REFERENCES[vocabulary.reference](vocabulary)


def load_token_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """Return the same vocabulary with the bytes of its tokens; UsageError if its file is not at hand."""
    return vocabulary if vocabulary.token_bytes else _load(vocabulary)


@lru_cache(maxsize=2)
def _load(vocabulary: Vocabulary) -> Vocabulary:
    tokens = list(make_reference(vocabulary).load_token_bytes())
    tokens[vocabulary.eot] = b""
    return replace(vocabulary, token_bytes=tuple(tokens))
