"""Encode with Hugging Face's tokenizers, the reference for every `tokenizer.json`."""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fineweb_shards.texts import Ids, Texts
from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.vocabulary_files import byte_letters, load_definition

if TYPE_CHECKING:
    import tokenizers

_CALL_BYTES = 256 * 1024  # a token takes about 200 bytes during a call


class TokenizersEngine(Reference):
    """The reference for vocabularies that a `tokenizer.json` defines."""

    name = "tokenizers"

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The library's own object, without truncation and padding."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a worker process
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_str(load_definition(self.vocabulary).decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # as ordinary text
        return tokenizer

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode(self, texts: Texts) -> list[Ids]:
        ids: list[Ids] = []
        for part in texts.parts(_CALL_BYTES):
            # "fast": without the tokens' offsets in the text.
            strings = [str(view, "utf-8") for view in part]
            encoded = self.tokenizer.encode_batch_fast(strings, add_special_tokens=False)
            ids += [np.array(one.ids, np.uint32) for one in encoded]
        return ids

    def load_token_bytes(self) -> tuple[bytes, ...]:
        definition = json.loads(load_definition(self.vocabulary))
        special = {token["id"] for token in definition.get("added_tokens") or [] if token["special"]}
        is_byte_level = "ByteLevel" in _types_in(definition.get("decoder"))
        bytes_of = {letter: byte for byte, letter in byte_letters().items()}
        tokens = [b""] * self.vocabulary.size
        for token, number in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if number in special:
                continue
            if is_byte_level:  # a letter for each byte, except perhaps in added tokens
                is_spelled = all(letter in bytes_of for letter in token)
                tokens[number] = bytes(bytes_of[letter] for letter in token) if is_spelled else token.encode()
            elif re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
                tokens[number] = bytes.fromhex(token[3:5])
            else:  # `▁` is a space in vocabularies from SentencePiece
                tokens[number] = token.replace("▁", " ").encode()
        return tuple(tokens)


def _types_in(part: dict[str, Any] | None) -> set[str]:
    """Return the types of a decoder and of its parts."""
    if part is None:
        return set()
    return {part["type"]}.union(*(_types_in(one) for one in part.get("decoders", [])))
