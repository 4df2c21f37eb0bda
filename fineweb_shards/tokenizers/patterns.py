"""The patterns with which tokenizers cut a text into pieces, by name.

A rank file holds tokens only. Which pattern belongs to it is known for those that have a name here; for
others the user gives a regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from fineweb_shards.errors import UsageError
from fineweb_shards.vocabulary import CutRule


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as tiktoken, the reference, is given it."""

    regex: str
    # The same as the fast engines recognize it: spelled in another way they take a slow path, if any, which
    # has its own idea of U+180E.
    spelling: str
    cut_rule: CutRule | None  # for long documents: tokenizers/cuts.py


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA3.replace("{1,3}", "")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_GPT2_SPELLING = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

PATTERNS = {
    "gpt2": Pattern(_GPT2, _GPT2_SPELLING, "gpt2"),
    "cl100k": Pattern(_CL100K, _LLAMA3, "words"),
    "o200k": Pattern(_O200K, _O200K, "words"),
    "llama3": Pattern(_LLAMA3, _LLAMA3, "words"),
    "qwen": Pattern(_QWEN, _QWEN, "words"),
    "nanochat": Pattern(_NANOCHAT, _NANOCHAT, "words"),
}


def resolve_pattern(text: str) -> str:
    """Return the name of a pattern, given by name or as the expression itself, or else the expression.

    A word that is neither is a misspelt name: nobody splits text at a word.
    """
    if text in PATTERNS:
        return text
    for name, pattern in PATTERNS.items():
        if text in (pattern.regex, pattern.spelling):
            return name
    if text.replace("_", "").replace("-", "").isalnum():
        raise UsageError(
            f"--pattern {text}: there is no pattern of this name.",
            f"Known are {', '.join(PATTERNS)}; or give the regular expression itself.",
        )
    return text


def get_pattern(text: str) -> Pattern:
    """Return a pattern by its name or its expression; of one without a name no cut is proved safe."""
    return PATTERNS.get(text) or Pattern(text, text, None)
