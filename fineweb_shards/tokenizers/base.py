"""What an engine is: many texts in, their tokens out, exactly as the vocabulary's reference has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.tokenizers.vocabularies import load_gpt2
from fineweb_shards.vocabulary import Vocabulary

# As wide as the engine makes them: the encoder checks their range before it makes them narrower.
Ids = NDArray[np.integer[Any]]
Offsets = NDArray[np.int64]


class Engine(ABC):
    """A tokenizer of one process, using one thread. Constructing it loads the vocabulary."""

    name: ClassVar[str]  # also the name of the package on PyPI

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        """`vocabulary` comes with the bytes of its tokens; None: GPT-2."""
        self.vocabulary = vocabulary or load_gpt2()

    @classmethod
    def installed_version(cls) -> str | None:
        """The version of the package behind this engine, or None where it is not installed."""
        try:
            return metadata.version(cls.name)
        except metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def encode(self, texts: list[str]) -> tuple[Ids, Offsets]:
        """All tokens in one array; text i's are `tokens[offsets[i]:offsets[i + 1]]`.

        May raise UnicodeEncodeError for a lone surrogate, or anything at all for a text it can't do:
        the caller (encoder.py) then finds another way.
        """
