"""Encode with tiktoken, the reference for all engines, from the package's ranks instead of a download."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.base import Engine, Ids
from fineweb_shards.tokenizers.vocabularies import load_token_bytes

if TYPE_CHECKING:
    import tiktoken


class TiktokenEngine(Engine):
    """The reference engine: its tokens are correct by definition."""

    name = "tiktoken"

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        """tiktoken's own object. Made when it is first used: beside another engine it is seldom needed."""
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        known = load_token_bytes(self.vocabulary)
        return tiktoken.Encoding(
            known.name,
            pat_str=r50k_pat_str,
            mergeable_ranks={token: rank for rank, token in enumerate(known.token_bytes)},
            special_tokens={"<|endoftext|>": known.eot},
        )

    def encode(self, texts: Texts) -> list[Ids]:
        return [np.array(self.encoding.encode_ordinary(text), np.uint32) for text in texts]
