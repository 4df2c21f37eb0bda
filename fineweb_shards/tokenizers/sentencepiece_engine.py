"""Encode with sentencepiece, the reference for its `.model` files. No other engine gives the same tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.vocabulary_files import load_definition

if TYPE_CHECKING:
    import sentencepiece


class SentencePieceEngine(Reference):
    """The reference for vocabularies that a SentencePiece model defines."""

    name = "sentencepiece"

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """The library's own object, which treats control symbols such as `</s>` as ordinary text."""
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=load_definition(self.vocabulary))

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = self.processor.encode(text)
        return ids

    def load_token_bytes(self) -> tuple[bytes, ...]:
        processor, tokens = self.processor, [b""] * self.vocabulary.size
        for number in range(processor.vocab_size()):
            piece = processor.id_to_piece(number)
            if processor.is_unknown(number):
                tokens[number] = "\N{REPLACEMENT CHARACTER}".encode()
            elif processor.is_byte(number):
                tokens[number] = bytes.fromhex(piece[3:5])
            elif not processor.is_control(number) and not processor.is_unused(number):
                tokens[number] = piece.replace("▁", " ").encode()
        return tuple(tokens)
