"""Choose the token that separates documents."""

from __future__ import annotations

from collections.abc import Mapping

from fineweb_shards.errors import UsageError

# What tokenizers call the token for the end of a text. One that has exactly one of them leaves no doubt.
_USUAL_NAMES = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOT>", "<｜end▁of▁sentence｜>")
)
_MOST_LISTED = 12


def choose_eot(wanted: str, special: Mapping[str, int], texts: Mapping[int, str], name: str) -> int:
    """Return the id of EOT in the tokenizer `name`: the one that is `wanted`, by name or id, or if nothing is
    wanted the only usual one. `special` are its special tokens, `texts` those that stand for text."""
    if not wanted:
        usual = [number for token, number in special.items() if token in _USUAL_NAMES and number not in texts]
        if len(usual) == 1:
            return usual[0]
        raise UsageError(f"{name}: it is not obvious which token ends a document.", _list(special, texts))
    if wanted in special and special[wanted] not in texts:
        return special[wanted]
    if not wanted.isdecimal():
        raise UsageError(f"--eot {wanted}: {name} has no special token of this name.", _list(special, texts))
    number = int(wanted)
    if number in texts:
        raise UsageError(
            f"--eot {wanted}: in {name} this id stands for the text {texts[number][:40]!r}.",
            _list(special, texts),
        )
    highest = max([*texts, *special.values()])
    if number > 2 * highest + 1000:
        raise UsageError(
            f"--eot {wanted}: the ids of {name} end at {highest:,}.",
            f"{highest + 1} is the next one that is free.",
        )
    return number


def _list(special: Mapping[str, int], texts: Mapping[int, str]) -> str:
    """Return a hint with the special tokens there are."""
    if not special:
        free = max(texts) + 1
        return f"Name one with --eot ID. The ids of its tokens end at {free - 1}, so {free} is free."
    listed = [f"{token} ({number})" for token, number in sorted(special.items(), key=lambda one: one[1])]
    more = f" and {len(listed) - _MOST_LISTED:,} more" if len(listed) > _MOST_LISTED else ""
    return f"Name one with --eot NAME or --eot ID: {', '.join(listed[:_MOST_LISTED])}{more}."
