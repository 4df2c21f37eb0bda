"""The patterns with which tokenizers split a text into pieces, and the published rank files, by name.

A rank file holds only tokens. This module knows the pattern and special tokens of the published ones; for others the
user gives the pattern as a regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from fineweb_shards.errors import UsageError
from fineweb_shards.vocabulary import GPT2, CutRule


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, for tiktoken (the reference) and for the fast engines."""

    regex: str  # for tiktoken
    spelling: str  # which the fast engines recognize: for others they have at most a slow path, which misreads U+180E
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
    """Return the name of a known pattern, given by name or as its expression; else the expression. A plain word is a
    misspelt name: nobody splits text at a word."""
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
    """Return a pattern by its name or its expression; for one without a name no cut is proved safe."""
    return PATTERNS.get(text) or Pattern(text, text, None)


_END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class BuiltinVocabulary:
    """A published rank file."""

    pattern: str
    sha256: str
    special_tokens: dict[str, int]
    repository: str = ""  # on the hub; empty: tiktoken has it
    file: str = ""
    used_by: str = ""  # a model better known than the name


def _reserved(first: int, last: int, number: int) -> dict[str, int]:
    """Return Llama 3's reserved special tokens with the ids from `first` to `last`."""
    return {f"<|reserved_special_token_{number + i}|>": first + i for i in range(last - first + 1)}


BUILTINS = {
    "gpt2": BuiltinVocabulary("gpt2", GPT2.sha256, {_END: GPT2.eot}),
    "cl100k_base": BuiltinVocabulary(
        "cl100k",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        used_by="GPT-4",
    ),
    "o200k_base": BuiltinVocabulary(
        "o200k",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        {_END: 199999, "<|endofprompt|>": 200018},
        used_by="GPT-4o",
    ),
    "llama3": BuiltinVocabulary(
        "llama3",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        {
            "<|begin_of_text|>": 128000,
            "<|end_of_text|>": 128001,
            **_reserved(128002, 128005, 0),
            "<|start_header_id|>": 128006,
            "<|end_header_id|>": 128007,
            **_reserved(128008, 128008, 4),
            "<|eot_id|>": 128009,
            **_reserved(128010, 128255, 5),
        },
        "meta-llama/Meta-Llama-3-8B",
        "original/tokenizer.model",
    ),
    "qwen": BuiltinVocabulary(
        "qwen",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        {_END: 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
        "Qwen/Qwen-7B",
        "qwen.tiktoken",
    ),
}
