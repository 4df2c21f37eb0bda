"""Define the interface of an engine: it encodes many texts at once, exactly as tiktoken would.

What an engine can't encode (very long texts, lone surrogates) is left to encoder.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.vocabularies import load_gpt2
from fineweb_shards.vocabulary import Vocabulary

# Of the width that the engine returns: the encoder checks the range before it narrows them.
Ids = NDArray[np.integer[Any]]
Offsets = NDArray[np.int64]


class Engine(ABC):
    """A tokenizer for one process, using one thread. Constructing it loads the vocabulary."""

    name: ClassVar[str]  # also the name of the package on PyPI

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        """Prepare to encode with `vocabulary`, which must have its `token_bytes`; None means GPT-2."""
        self.vocabulary = vocabulary or load_gpt2()

    @classmethod
    def installed_version(cls) -> str | None:
        """Return the version of the package that this engine uses, or None if it is not installed."""
        try:
            return metadata.version(cls.name)
        except metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def encode(self, texts: list[str]) -> tuple[Ids, Offsets]:
        """Return the tokens of all texts in one array; text i has `tokens[offsets[i]:offsets[i + 1]]`.

        May raise UnicodeEncodeError for a lone surrogate, and any other exception for a text that it can't
        encode; encoder.py handles both.
        """
