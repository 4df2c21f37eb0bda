"""Encode with gigatoken, a Rust library: the same tokens as tiktoken, 20 times as fast, and loaded at once.

One document a call, as bytes: its calls for many documents need awkward-array, whose import takes a worker a
third of a second and 40 MB, and are no faster.
"""

from __future__ import annotations

from typing import Any

from fineweb_shards.system.machine import own_memory_bytes
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.base import Engine, Ids
from fineweb_shards.tokenizers.vocabularies import open_ranks
from fineweb_shards.vocabulary import Vocabulary

# Its cache of words grows without limit: by 13 MB in 50 MB of English, by 90 MB in 10 MB of random letters.
# So when the process has grown by this much, a new tokenizer with an empty cache replaces it. That takes as
# long as encoding 12 MB of English, and the words have to be learnt again.
_CACHE_BYTES = 96 * 2**20
_LOOK_EVERY_BYTES = 2**20


class GigatokenEngine(Engine):
    """The engine that `auto` prefers."""

    name = "gigatoken"

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(vocabulary)
        self._tokenizer = self._load()
        self._memory_bytes = 0  # at the first look; not before, because the first chunk brings its own memory
        self._until_look_bytes = _LOOK_EVERY_BYTES

    def _load(self) -> Any:
        from gigatoken.gigatoken_rs import BPETokenizer  # here, because some platforms have no wheel

        with open_ranks(self.vocabulary) as path:
            # Without special tokens: a literal `<|endoftext|>` in a document is ordinary text.
            return BPETokenizer.from_tiktoken(str(path), "gpt2", None)

    def encode(self, texts: Texts) -> list[Ids]:
        tokens: list[Ids] = []
        for data in texts.iter_bytes():
            tokens.append(self._tokenizer.encode(data))
            self._until_look_bytes -= len(data)
            if self._until_look_bytes <= 0:
                self._bound_cache()
        return tokens

    def _bound_cache(self) -> None:
        """Replace the tokenizer if its cache has become too large."""
        self._until_look_bytes = _LOOK_EVERY_BYTES
        # The process's own growth, because the size of the cache is not told. Whatever else grows by that
        # much only has the effect that the cache is emptied sooner.
        memory_bytes = own_memory_bytes()
        if not self._memory_bytes:
            self._memory_bytes = memory_bytes
        elif memory_bytes - self._memory_bytes > _CACHE_BYTES:
            self._tokenizer = None  # first, so that there are never two of them
            self._tokenizer = self._load()
            self._memory_bytes = 0
