"""The rank files that have a name: what is in them, which pattern and special tokens go with them, and where
they are published."""

from __future__ import annotations

from dataclasses import dataclass

from fineweb_shards.vocabulary import GPT2

_END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class BuiltinVocabulary:
    """A published rank file."""

    pattern: str
    sha256: str
    special_tokens: dict[str, int]
    repository: str = ""  # on the hub; empty: tiktoken has it
    file: str = ""
    used_by: str = ""  # a model that is better known than the name


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


def find_builtin(sha256: str) -> tuple[str, BuiltinVocabulary] | None:
    """Return name and facts of a rank file by its hash; None if it is not among the known ones."""
    return next(((name, known) for name, known in BUILTINS.items() if known.sha256 == sha256), None)
