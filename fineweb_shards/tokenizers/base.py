"""Define the interface of an engine: it encodes many texts at once, exactly as the vocabulary's reference.

What an engine can't encode, such as very long texts, is left to encoder.py. The ids of many texts come in one array
(`JoinedIds`) with a gap in front of each text for its EOT, so that a block of tokens is made of a few large arrays and
nothing has to be done per document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import ClassVar

import numpy as np

from fineweb_shards.texts import Ids, Texts
from fineweb_shards.types import Positions, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary

_TEXTS_AT_ONCE = 64  # 250 KB of ids: still in the processor's cache when they are checked and narrowed


@dataclass(frozen=True, slots=True)
class JoinedIds:
    """The ids of texts, one after the other. What `ids` has at `positions`, one in front of each text, means
    nothing."""

    ids: Tokens
    positions: Positions

    def of_text(self, i: int) -> Tokens:
        """Return the ids of text `i`."""
        end = self.positions[i + 1] if i + 1 < len(self.positions) else len(self.ids)
        return self.ids[self.positions[i] + 1 : end]


def join_ids(texts: list[Tokens]) -> Iterator[JoinedIds]:
    """Join the ids of texts, some texts at a time."""
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[first : first + _TEXTS_AT_ONCE]
        parts: list[Tokens] = [np.zeros(1, np.uint32)] * (2 * len(some))
        parts[1::2] = some
        widths = np.fromiter(map(len, some), np.int64, len(some)) + 1
        yield JoinedIds(np.concatenate(parts), np.cumsum(widths) - widths)


def is_failure(error: BaseException) -> bool:
    """Return whether a library has failed, with an exception or a panic of Rust's: pyo3 makes a BaseException of that,
    of a class for each library. An interruption or a lack of memory is none."""
    return type(error).__name__ == "PanicException" or (
        isinstance(error, Exception) and not isinstance(error, MemoryError)
    )


class Engine(ABC):
    """A tokenizer for one process, using one thread. Constructing it loads what it encodes with."""

    name: ClassVar[str]  # also the name of the package on PyPI

    def __init__(self, vocabulary: Vocabulary | None = None, mistaken: str = "") -> None:
        """Prepare to encode with `vocabulary`; None means GPT-2. Texts with `mistaken` characters are left to the
        reference."""
        self.vocabulary = vocabulary or GPT2
        self.mistaken = mistaken

    @classmethod
    def installed_version(cls) -> str | None:
        """Return the version of the package that this engine uses, or None if it is not installed."""
        try:
            return metadata.version(cls.name)
        except metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def encode(self, texts: Texts) -> list[Ids]:
        """Return the tokens of each text, of any width: encoder.py checks their range before it narrows them.

        May raise any exception for a text that it can't encode; encoder.py handles it.
        """

    def encode_joined(self, texts: Texts) -> Iterator[JoinedIds]:
        """Yield the tokens of all texts, those of many texts at a time, as `encode` does.

        An engine that has them in one array anyway yields it instead of taking it apart.
        """
        return join_ids(self.encode(texts))


class Reference(Engine):
    """An engine whose tokens are correct by definition, for the vocabularies whose file is its own kind."""

    @abstractmethod
    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of one text, as one call of the reference makes them. The names of special tokens are
        ordinary text."""

    @abstractmethod
    def load_token_bytes(self) -> tuple[bytes, ...]:
        """Return the bytes of every id; none for those that no text has."""

    def encode(self, texts: Texts) -> list[Ids]:
        return [np.array(self.encode_text(text), np.uint32) for text in texts]
