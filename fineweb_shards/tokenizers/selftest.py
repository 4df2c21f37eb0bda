"""Check, before a run, that the engine encodes difficult strings exactly as the reference does.

It finds an engine that was updated, miscompiled, or takes another pattern, before any shard is written. Every
worker encodes a few hundred strings, in milliseconds; the parent, which knows the reference's tokens, tells
it their hash. GPT-2's is known beforehand. For another vocabulary the parent has tried its own tokens, too.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from fineweb_shards.errors import ExactnessError, UsageError
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.base import Ids, Reference
from fineweb_shards.tokenizers.patterns import PATTERNS
from fineweb_shards.tokenizers.references import load_token_bytes, make_reference
from fineweb_shards.tokenizers.unicode_differences import agreed_characters
from fineweb_shards.tokenizers.vocabulary_files import is_gpt2_text
from fineweb_shards.vocabulary import Vocabulary

# What `digest_tokens` returns for tiktoken's tokens of `hostile_strings` in GPT-2; a test compares them.
GPT2_SHA256 = "f84f803c8e6f78f5adbfe2c06c140d4dedf49b49a7fbaf28953069adc202d400"
_OWN_TOKENS = 4000  # of a vocabulary's tokens, how many are tried as texts, and beside others

Encode = Callable[[Texts], list[Ids]]

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


def own_strings(vocabulary: Vocabulary, names: Iterable[str] = ()) -> list[str]:
    """Return texts made of a vocabulary's own tokens: alone, before and after others, and the longest. The
    `names` of special and added tokens are all tried, in every position."""
    tokens = [token.decode("utf-8", "ignore") for token in load_token_bytes(vocabulary).token_bytes if token]
    chooser = random.Random(vocabulary.sha256)  # noqa: S311, RUF100
    chosen = chooser.sample(tokens, min(_OWN_TOKENS, len(tokens)))
    longest = sorted(tokens, key=len)[-100:]
    pairs = [left + right for left, right in zip(chosen, reversed(chosen), strict=True)]
    lines = [" ".join(chooser.choices(tokens, k=20)) for _ in range(200)]
    named = [text for name in names for text in (name, f"x{name}y", f" {name} ", name + name, f"{name} z")]
    return [*chosen, *longest, *pairs, *lines, *named]


def find_mistaken(encode: Encode, reference: Reference) -> str:
    """Return the characters that an engine takes for something else than the reference does: as letters,
    digits, marks or white space, or in another order."""
    characters = agreed_characters()
    blocks = [characters[i : i + 64] for i in range(0, len(characters), 64)]
    agreed = _agree(encode, reference, blocks)
    doubtful = [block for block, same in zip(blocks, agreed, strict=True) if not same]
    alone = [[character] for block in doubtful for character in block]
    agreed = _agree(encode, reference, alone)
    return "".join(character for (character,), same in zip(alone, agreed, strict=True) if not same)


def _agree(encode: Encode, reference: Reference, blocks: list[list[str]]) -> list[bool]:
    """Return for each block of characters whether a text with them, beside others, has the same tokens; also
    as marks before others, which a normalizer may put into another order."""
    lines = ("".join(f"a{c}{c}b {c}'s1{c}2e{c}\u0323\u0301\n" for c in block) for block in blocks)
    texts = Texts.from_strings(lines)
    pairs = zip(encode(texts), reference.encode(texts), strict=True)
    return [found.tolist() == expected.tolist() for found, expected in pairs]


def digest_tokens(documents: Iterable[Ids]) -> str:
    """Return the SHA-256 of the tokens of some documents and of where each of them ends."""
    digest = hashlib.sha256()
    for tokens in documents:
        digest.update(len(tokens).to_bytes(4, "little") + tokens.astype("<u4").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=2)
def expected_sha256(vocabulary: Vocabulary) -> str:
    """Return the hash of the reference's tokens of `hostile_strings`."""
    if is_gpt2_text(vocabulary):
        return GPT2_SHA256
    return digest_tokens(make_reference(vocabulary).encode(Texts.from_strings(hostile_strings())))


def check_engine(encode: Encode, name: str, reference: Reference, expected: str) -> None:
    """Raise ExactnessError for the first string that is not encoded as the reference does.

    The reference itself is only asked if the tokens don't have the expected hash: loading it takes a worker
    longer than the whole test.
    """
    strings = hostile_strings()
    documents = encode(Texts.from_strings(strings))
    if digest_tokens(documents) != expected:
        _compare(strings, documents, name, reference)


def check_engine_in_full(encode: Encode, name: str, reference: Reference, names: Iterable[str]) -> None:
    """Raise ExactnessError for the first string that is not encoded as the reference does, with strings from
    the vocabulary itself and the `names` of its special and added tokens."""
    strings = [*hostile_strings(), *own_strings(reference.vocabulary, names)]
    _compare(strings, encode(Texts.from_strings(strings)), name, reference)


def _compare(strings: Sequence[str], documents: list[Ids], name: str, reference: Reference) -> None:
    right = reference.encode(Texts.from_strings(strings))
    for text, tokens, expected in zip(strings, documents, right, strict=True):
        if tokens.tolist() != expected.tolist():
            raise ExactnessError(
                f"The self-test failed: {name} encodes {text[:40]!r} as {tokens[:20].tolist()}, "
                f"{reference.name} as {expected[:20].tolist()}."
            )


def check_reference(reference: Reference, special_tokens: Iterable[str]) -> None:
    """Raise UsageError if a vocabulary loses text, or makes an EOT of it."""
    vocabulary = reference.vocabulary
    for text in special_tokens:
        tried = (reference.encode_text(around) for around in (text, f"a{text}b", f"a {text} b"))
        if any(vocabulary.eot in tokens for tokens in tried):
            raise UsageError(
                f"{vocabulary.name}: the text {text!r} in a document would become the EOT {vocabulary.eot}, "
                "and be taken for a boundary.",
                f"Choose an id with --eot that no text has: {vocabulary.size} is the next one that is free.",
            )
    if vocabulary.reference != "tiktoken" or vocabulary.pattern in PATTERNS:
        return  # the others may change a text: they have normalizers
    tokens = load_token_bytes(vocabulary).token_bytes
    for text in Texts.from_strings(hostile_strings()):
        found = b"".join(tokens[token] for token in reference.encode_text(text))
        if found != text.encode():
            raise UsageError(
                f"--pattern {vocabulary.pattern}: it passes over parts of a text, which would be lost: of "
                f"{text[:40]!r} it leaves {found.decode('utf-8', 'replace')[:40]!r}.",
                r"Most patterns end with |\s+(?!\S)|\s+ and take every other character before that.",
            )
