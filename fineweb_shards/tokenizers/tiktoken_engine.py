"""The reference: tiktoken itself, on the ranks of the package instead of a download."""

from __future__ import annotations

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from fineweb_shards.tokenizers.base import Engine, Ids, Offsets
from fineweb_shards.tokenizers.ranks import EOT, load_ranks


class TiktokenEngine(Engine):
    name = "tiktoken"

    def __init__(self) -> None:
        self.encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=r50k_pat_str,
            mergeable_ranks=load_ranks(),
            special_tokens={"<|endoftext|>": EOT},
        )

    def encode(self, texts: list[str]) -> tuple[Ids, Offsets]:
        lists = [self.encoding.encode_ordinary(text) for text in texts]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in lists], out=offsets[1:])
        tokens = np.empty(int(offsets[-1]), np.uint32)
        for i, ids in enumerate(lists):
            tokens[offsets[i] : offsets[i + 1]] = ids
        return tokens, offsets
