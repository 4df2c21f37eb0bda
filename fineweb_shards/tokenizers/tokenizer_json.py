"""Make a Hugging Face `tokenizer.json` for the fast engines, from ranks or from another one.

It has none of the special tokens, so that their names are ordinary text in a document.
"""

from __future__ import annotations

import json
from typing import Any

from fineweb_shards.tokenizers.patterns import PATTERNS, Pattern
from fineweb_shards.tokenizers.vocabulary_files import Merges, Ranks, sort_ranks


def list_merges(ranks: Ranks) -> Merges:
    """Return every way in which two tokens make a third one, in the order of the third's rank.

    That is tiktoken's rule: two neighbours are merged if what they make is a token, whatever it was made of
    when the vocabulary was trained. (Llama 3 has 678 tokens that a list of one merge each does not reach.)
    """
    merges: Merges = []
    for token, _ in sort_ranks(ranks):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def ranks_to_json(ranks: Ranks, merges: Merges, pattern: Pattern, added: list[dict[str, Any]]) -> str:
    """Return a `tokenizer.json` for ranks, with `added` tokens."""
    letters = byte_letters()

    def spell(token: bytes) -> str:
        return token.decode("latin-1").translate(letters)

    is_gpt2 = pattern is PATTERNS["gpt2"]  # the only one that ByteLevel has built in
    split = {"type": "Split", "pattern": {"Regex": pattern.spelling}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": is_gpt2}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level
            if is_gpt2
            else {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel"},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": True,  # tiktoken looks a whole piece up first
                "vocab": {spell(token): rank for token, rank in ranks.items()},
                "merges": [[spell(left), spell(right)] for left, right in merges],
            },
        }
    )


def without_special_tokens(tokenizer: dict[str, Any], added: list[dict[str, Any]]) -> str:
    """Return a `tokenizer.json` with `added` tokens in place of its special ones, and nothing that shortens
    or pads a text."""
    kept = [token for token in tokenizer.get("added_tokens", []) if not token["special"]]
    changes = {"added_tokens": kept + added, "truncation": None, "padding": None, "post_processor": None}
    return json.dumps(tokenizer | changes)


def special_token(content: str, number: int) -> dict[str, Any]:
    """Return an entry of `added_tokens`."""
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **no, "special": True}


def byte_letters() -> dict[int, str]:
    """Return GPT-2's characters for the 256 bytes: printable Latin-1 unchanged, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte) if byte in printable else chr(next(others)) for byte in range(256)}


def is_byte_level(tokenizer: dict[str, Any]) -> bool:
    """Return whether a `tokenizer.json` takes a text as it is, and the same anywhere in a text as at its
    beginning: it does not normalize it, and puts no space before it."""
    parts = pre_tokenizers(tokenizer)
    return (
        tokenizer["model"].get("type") == "BPE"
        and _has_no_normalizer(tokenizer)
        and bool(parts)
        and parts[-1]["type"] == "ByteLevel"
        and not parts[-1].get("add_prefix_space")
        and all(part["type"] == "Split" for part in parts[:-1])
    )


def pre_tokenizers(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pre-tokenizers of a `tokenizer.json`, in order."""
    whole = tokenizer.get("pre_tokenizer") or {}
    parts: list[dict[str, Any]] = whole.get("pretokenizers", [whole] if whole else [])
    return parts


def _has_no_normalizer(tokenizer: dict[str, Any]) -> bool:
    normalizer = tokenizer.get("normalizer")
    return normalizer is None or normalizer.get("normalizers") == []
