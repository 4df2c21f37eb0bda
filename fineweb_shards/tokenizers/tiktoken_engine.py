"""Encode with tiktoken, the reference for all engines, from the package's ranks instead of a download."""

from __future__ import annotations

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from fineweb_shards.tokenizers.base import Engine, Ids, Offsets
from fineweb_shards.vocabulary import Vocabulary


class TiktokenEngine(Engine):
    """The reference engine: its tokens are correct by definition."""

    name = "tiktoken"

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(vocabulary)
        self.encoding = tiktoken.Encoding(
            self.vocabulary.name,
            pat_str=r50k_pat_str,
            mergeable_ranks={token: rank for rank, token in enumerate(self.vocabulary.token_bytes)},
            special_tokens={"<|endoftext|>": self.vocabulary.eot},
        )

    def encode(self, texts: list[str]) -> tuple[Ids, Offsets]:
        lists = [self.encoding.encode_ordinary(text) for text in texts]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in lists], out=offsets[1:])
        tokens = np.empty(int(offsets[-1]), np.uint32)
        for i, ids in enumerate(lists):
            tokens[offsets[i] : offsets[i + 1]] = ids
        return tokens, offsets
