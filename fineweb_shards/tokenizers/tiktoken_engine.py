"""Encode with tiktoken, the reference for rank files. tiktoken itself would download them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fineweb_shards.errors import UsageError
from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.builtin_vocabularies import get_pattern
from fineweb_shards.tokenizers.vocabulary_files import load_ranks

if TYPE_CHECKING:
    import tiktoken


class TiktokenEngine(Reference):
    """The reference for vocabularies that a rank file defines."""

    name = "tiktoken"

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        """The library's own object, loaded on first use: beside another engine it is seldom needed."""
        import tiktoken

        pattern = get_pattern(self.vocabulary.pattern)
        try:
            return tiktoken.Encoding(
                self.vocabulary.name,
                pat_str=pattern.regex,
                mergeable_ranks=load_ranks(self.vocabulary),
                special_tokens={},
            )
        except ValueError as error:
            raise UsageError(
                f"--pattern {pattern.regex}: not a regular expression that tiktoken accepts "
                f"({' '.join(str(error).split())[:200]}).",
                "Give it in single quotes, exactly as the tokenizer has it.",
            ) from error

    def encode_text(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def load_token_bytes(self) -> tuple[bytes, ...]:
        tokens = [b""] * self.vocabulary.size
        for token, rank in load_ranks(self.vocabulary).items():
            tokens[rank] = token
        return tuple(tokens)
