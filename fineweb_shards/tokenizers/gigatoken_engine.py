"""Encode with gigatoken, a Rust library: the reference's tokens, many times as fast, and loaded at once.

Its batch calls need awkward-array, whose import takes a worker a third of a second and 40 MB. Instead, documents are
joined to one text, with a boundary between them that is a special token to gigatoken: it encodes both sides separately.
One call per document took 10 % longer, and several times as long for short documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fineweb_shards.system.machine import own_memory_bytes
from fineweb_shards.texts import Ids, Texts
from fineweb_shards.tokenizers.base import Engine, JoinedIds, join_ids
from fineweb_shards.tokenizers.references import make_reference
from fineweb_shards.tokenizers.unicode_differences import UnicodeDifferences
from fineweb_shards.tokenizers.vocabulary_files import BOUNDARY, find_engine_file, is_gpt2_text, open_gpt2_ranks
from fineweb_shards.vocabulary import Vocabulary

# Its cache of words grows without limit: by 13 MB in 50 MB of English, by 90 MB in 10 MB of random letters. So when the
# process has grown by this much, a new tokenizer with an empty cache replaces it. That takes as long as encoding 12 MB
# of English, plus the time to fill the cache again.
_CACHE_BYTES = 96 * 2**20
_LOOK_EVERY_BYTES = 2**20
# The most bytes by which it grows for each byte of text (measured: 9 to 12), apart from steps of up to 64 MB when its
# table doubles.
_MOST_GROWTH = 16
# A text that contains it changes the number of boundaries, and is left to the reference.
_BOUNDARY_BYTES = BOUNDARY.encode()
_CALL_BYTES = 256 * 1024  # fits into the CPU's cache, with its tokens


class GigatokenEngine(Engine):
    """The engine that `auto` prefers."""

    name = "gigatoken"

    def __init__(self, vocabulary: Vocabulary | None = None, mistaken: str = "") -> None:
        super().__init__(vocabulary, mistaken)
        self._differences = UnicodeDifferences(mistaken)
        self._tokenizer = self._load()
        # Vocabularies that treat the beginning of a text differently from text after a boundary have none.
        self._knows_boundary = self._tokenizer.encode(_BOUNDARY_BYTES).tolist() == [self.vocabulary.size]
        self._memory_bytes = 0  # at the first look; not earlier, because the first chunk also takes memory
        self._until_look_bytes = _LOOK_EVERY_BYTES

    def _load(self) -> Any:
        """Load a tokenizer whose only special token is the boundary: `<|endoftext|>` is ordinary text."""
        from gigatoken.gigatoken_rs import BPETokenizer  # here, because some platforms have no wheel

        if not is_gpt2_text(self.vocabulary):
            return BPETokenizer.from_hf(str(find_engine_file(self.vocabulary)))
        with open_gpt2_ranks() as path:
            return BPETokenizer.from_tiktoken(str(path), "gpt2", {BOUNDARY: self.vocabulary.size})

    def encode(self, texts: Texts) -> list[Ids]:
        return [joined.of_text(i) for joined in self.encode_joined(texts) for i in range(len(joined.positions))]

    def encode_joined(self, texts: Texts) -> Iterator[JoinedIds]:
        if not self._knows_boundary:
            yield from join_ids([self._encode_alone(text) for text in texts.iter_bytes()])
            return
        for part in texts.parts(_CALL_BYTES):
            yield from self._encode_together(part)

    def _encode_together(self, texts: list[memoryview]) -> Iterator[JoinedIds]:
        """Encode texts with one call. The boundary in front of each takes one id, where its EOT will be."""
        data = _BOUNDARY_BYTES.join([b"", *texts])
        if not self._differences.is_in(data):
            ids = self._call(data)
            boundaries = np.flatnonzero(ids == self.vocabulary.size)
            if len(boundaries) == len(texts):  # more if a text contains the boundary
                yield JoinedIds(ids, boundaries)
                return
        yield from join_ids([self._encode_alone(bytes(text)) for text in texts])

    def _encode_alone(self, text: bytes) -> Ids:
        if self._differences.is_in(text) or _BOUNDARY_BYTES in text:
            return np.array(make_reference(self.vocabulary).encode_text(text.decode()), np.uint32)
        return self._call(text)

    def _call(self, data: bytes) -> Ids:
        """Encode with the tokenizer, which is first replaced if its cache has become too large."""
        self._until_look_bytes -= len(data)
        if self._until_look_bytes <= 0:
            # The growth of the process, because gigatoken does not report the size of its cache. If something else
            # grows, the cache is only emptied sooner.
            memory_bytes = own_memory_bytes()
            self._memory_bytes = self._memory_bytes or memory_bytes
            room_bytes = self._memory_bytes + _CACHE_BYTES - memory_bytes
            if room_bytes < 0:
                self._tokenizer = None  # free the old one first
                self._tokenizer = self._load()
                self._memory_bytes = 0
            self._until_look_bytes = max(_LOOK_EVERY_BYTES, room_bytes // _MOST_GROWTH)
        ids: Ids = self._tokenizer.encode(data)
        return ids
