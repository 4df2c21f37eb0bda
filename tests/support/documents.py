"""Seeded documents for tests: ordinary prose, other scripts, and everything that hurts."""

from __future__ import annotations

import random

_SYLLABLES = ["ta", "ri", "mo", "len", "ska", "pro", "the", "ing", "er", "con", "ver", "Al", "un", "st"]
_OTHERS = ["你好世界", "これは日本語です", "Привет мир", "مرحبا", "สวัสดีชาวโลก", "🙂👩‍👩‍👧", "naïve café", "e\u0301"]
HOSTILE = [
    "",
    " ",
    "\n",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "\0",
    "\u200b\ufeff",
    "it's we'll I'd 'tis 'S don't",
    "'" * 50,
    "x" * 5000,
    " " * 5000 + "x",
    "\n" * 3000,
    "=" * 4000,
    "的一是不了人我在有他" * 400,
    "1234567890" * 300,
    "\u3000\u2028\x85 \xa0",
]


def make_documents(count: int, seed: int = 0) -> list[str]:
    """`count` documents; the hostile ones are among them."""
    chooser = random.Random(seed)
    documents = [_prose(chooser) for _ in range(max(0, count - len(HOSTILE)))]
    for text in HOSTILE[:count]:
        documents.insert(chooser.randint(0, len(documents)), text)
    return documents


def _prose(chooser: random.Random) -> str:
    words = []
    for _ in range(chooser.randint(1, 120)):
        if chooser.random() < 0.03:
            words.append(chooser.choice(_OTHERS))
        else:
            words.append("".join(chooser.choices(_SYLLABLES, k=chooser.randint(1, 4))))
        if chooser.random() < 0.1:
            words.append(chooser.choice([".", ",\n", "!", " -", "\n\n", "  ", "\t", " 42", "'s"]))
    return " ".join(words)
