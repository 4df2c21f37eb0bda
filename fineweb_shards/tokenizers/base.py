"""Define the interface of an engine: it encodes many texts at once, exactly as the vocabulary's reference.

encoder.py handles texts that an engine can't encode, such as very long ones. The ids of many texts share one array
(`JoinedIds`) with a gap in front of each text for its EOT. So a block of tokens consists of a few large arrays, without
work per document.
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
    """The ids of texts, in order, with a placeholder in front of each text, at `positions`."""

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
    """Return whether an error is a library's failure: an exception or a Rust panic, which pyo3 raises as a
    BaseException, of a different class in each library. Interruptions and MemoryError don't count."""
    return type(error).__name__ == "PanicException" or (
        isinstance(error, Exception) and not isinstance(error, MemoryError)
    )


class Engine(ABC):
    """A tokenizer for one process, using one thread. Constructing it loads its data."""

    name: ClassVar[str]  # also the name of the package on PyPI

    def __init__(self, vocabulary: Vocabulary | None = None, mistaken: str = "") -> None:
        """Load `vocabulary` (by default GPT-2). Texts with `mistaken` characters are left to the reference."""
        self.vocabulary = vocabulary or GPT2
        self.mistaken = mistaken

    @classmethod
    def installed_version(cls) -> str | None:
        """Return the version of this engine's package; None if it is not installed."""
        try:
            return metadata.version(cls.name)
        except metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def encode(self, texts: Texts) -> list[Ids]:
        """Return the tokens of each text, in any integer dtype: encoder.py checks their range before narrowing them.

        May raise any exception; encoder.py handles it.
        """

    def encode_joined(self, texts: Texts) -> Iterator[JoinedIds]:
        """Yield the tokens of all texts, many texts at a time. An engine that has them in one array overrides this."""
        return join_ids(self.encode(texts))


class Reference(Engine):
    """An engine whose tokens are correct by definition, for vocabularies in its own file format."""

    @abstractmethod
    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of one text from a single call. The names of special tokens are ordinary text."""

    @abstractmethod
    def load_token_bytes(self) -> tuple[bytes, ...]:
        """Return the bytes of every id; empty for ids that don't occur in text."""

    def encode(self, texts: Texts) -> list[Ids]:
        return [np.array(self.encode_text(text), np.uint32) for text in texts]
