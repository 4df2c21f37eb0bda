"""Encode with sentencepiece, the reference for its `.model` files. No other engine gives the same tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.vocabulary_files import load_definition

if TYPE_CHECKING:
    import sentencepiece

_SPACE_LETTER = "▁"
_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()


class SentencePieceEngine(Reference):
    """The reference for vocabularies that a SentencePiece model defines."""

    name = "sentencepiece"

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """sentencepiece's own object. Control symbols such as `</s>` are ordinary text to it."""
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=load_definition(self.vocabulary))

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = self.processor.encode(text)
        return ids

    def load_token_bytes(self) -> tuple[bytes, ...]:
        return tuple(map(self._bytes_of, range(self.vocabulary.size)))

    def _bytes_of(self, number: int) -> bytes:
        processor = self.processor
        if number >= processor.vocab_size() or processor.is_control(number) or processor.is_unused(number):
            return b""
        if processor.is_unknown(number):
            return _UNKNOWN
        piece: str = processor.id_to_piece(number)
        if processor.is_byte(number):
            return bytes.fromhex(piece[3:5])
        return piece.replace(_SPACE_LETTER, " ").encode()
