"""Check, before a run, that the engine encodes a few hundred difficult strings exactly as tiktoken does.

It takes milliseconds, and finds an engine that was updated, miscompiled or loaded with another
pattern before any shard is written.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from fineweb_shards.errors import ExactnessError
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.base import Ids
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.vocabulary import GPT2, Vocabulary

# What `digest_tokens` returns for tiktoken's tokens of `hostile_strings`; a test compares them.
EXPECTED_SHA256: dict[Vocabulary, str] = {
    GPT2: "f84f803c8e6f78f5adbfe2c06c140d4dedf49b49a7fbaf28953069adc202d400"
}

_WORDS = [
    "a",
    "Hello",
    "don't",
    "I'LL",
    "we've",
    "'s",
    "'S",
    "naïve",
    "Straße",
    "你好",
    "日本語",
    "สวัสดี",
]
_WORDS += ["العربية", "हिन्दी", "한국어", "🙂", "👩‍👩‍👧", "é", "e\u0301", "ﬁ", "ǅ", "ª", "ᾳ"]
_NUMBERS = ["7", "1234567890", "٣", "Ⅷ", "½", "²", "①", "𝟘"]
_SIGNS = [
    "!",
    "...",
    "<|endoftext|>",
    "'",
    "''",
    "’",
    "_",
    "$",
    "—",
    "\u200b",
    "\ufeff",
    "\ufffd",
    "\0",
]
_SIGNS += ["\u180e", "\U000e0001", "\x7f", "\u202e", "\ud800", "\udfff", "\U0010ffff"]
_SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "\xa0",
    "\u3000",
    "\u2028",
    "\x85",
    "\x1f",
]


def hostile_strings() -> list[str]:
    """Return strings in which all kinds of characters meet, in both orders, with and without white space."""
    atoms = [*_WORDS, *_NUMBERS, *_SIGNS, *_SPACES]
    strings = ["", *atoms, *(atom * 40 for atom in atoms)]
    partners = ["a", "7", "!", " ", "\n", "'s", "你"]
    strings += [left + right for left, right in itertools.product(atoms, partners)]
    strings += [f"{atom} {partner}" for atom, partner in itertools.product(atoms, ["x", " 9", "  ?"])]
    strings += ["".join(atoms), " ".join(atoms), "\n".join(atoms)]
    return strings


def digest_tokens(documents: Iterable[Ids]) -> str:
    """Return the SHA-256 of the tokens of some documents and of where each of them ends."""
    digest = hashlib.sha256()
    for tokens in documents:
        digest.update(len(tokens).to_bytes(4, "little") + tokens.astype("<u4").tobytes())
    return digest.hexdigest()


def check_engine(encoder: Encoder, name: str, reference: TiktokenEngine) -> None:
    """Raise ExactnessError for the first string that the encoder does not encode as tiktoken does.

    tiktoken itself is only asked if the tokens are not the expected ones: loading it takes a worker longer
    than the whole test.
    """
    strings = hostile_strings()
    documents = encoder.encode_documents(Texts.from_strings(strings))
    if digest_tokens(documents) == EXPECTED_SHA256.get(reference.vocabulary):
        return
    for text, tokens in zip(strings, documents, strict=True):
        found, expected = tokens.tolist(), reference.encoding.encode_ordinary(text)
        if found != expected:
            raise ExactnessError(
                f"The self-test failed: {name} encodes {text[:40]!r} as {found[:20]}, "
                f"{reference.vocabulary.reference} as {expected[:20]}."
            )
