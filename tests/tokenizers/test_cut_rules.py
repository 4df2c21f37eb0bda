"""The rule `words`: behind a word both sides have the tokens of the whole, for a family of patterns."""

from __future__ import annotations

import itertools
import random
import re
from functools import cache

import pytest
import regex
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers import FAST_ENGINES, builtin_vocabularies, cuts, encoder
from fineweb_shards.tokenizers.cuts import find_cuts
from fineweb_shards.tokenizers.encoder import SAMPLE_BYTES, UnencodableError, _comparable
from fineweb_shards.vocabulary import CutRule
from tests.support import cut_rules, reference

# In both spellings: as the reference is given them, and as the fast engines are.
PATTERNS = {
    regex for one in builtin_vocabularies.PATTERNS.values() if one.cut_rule for regex in (one.regex, one.spelling)
}
ALPHABET = [*"aZsLrE'’ ,.9/\n\r\t-", "  ", "'s", "'LL", " '", "你", "，", "。", "я", "Я", "ع", "क", "た", "서"]
ALPHABET += ["é", "\u0301", "\u0902", "\u3000", "\x85", "\u180e", "\u200b", "ǅ", "ſ", "½", "🙂", "\0"]
nasty = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=40).map("".join)


@cache
def encoding(pattern: str) -> tiktoken.Encoding:
    """GPT-2's tokens, split by another pattern."""
    ranks = reference.encoding()._mergeable_ranks
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def places(data: bytes) -> list[int]:
    """Every place that the rule allows."""
    return [high for high in range(1, len(data)) if cuts.find_cut(data, high - 1, high, "words")]


def check(text: str) -> int:
    """Both sides of every cut have the pieces, and the tokens, of the whole; returns how many there are."""
    data = text.encode()
    for place in (found := places(data)):
        left, right = data[:place].decode(), data[place:].decode()
        for pattern in PATTERNS:
            pieces = [regex.findall(pattern, part) for part in (left, right, text)]
            assert pieces[0] + pieces[1] == pieces[2], (pattern, left, right)
            tokens = [encoding(pattern).encode_ordinary(part) for part in (left, right, text)]
            assert tokens[0] + tokens[1] == tokens[2], (pattern, left, right)
    return len(found)


@given(nasty)
def test_no_cut_behind_a_word_changes_nasty_texts(text: str) -> None:
    """Whatever characters meet: contractions, capitals, marks, white space that is none."""
    check(text)


@given(st.text(max_size=40), st.sampled_from(["a", "я", "ع", "क", "た", "서", "你"]), st.text(max_size=40))
def test_no_cut_behind_a_word_changes_any_text(left: str, letter: str, right: str) -> None:
    """The same for arbitrary Unicode around a word that ends."""
    assert check(f"{left}{letter} {right}".encode("utf-8", "replace").decode())


def test_no_cut_behind_a_word_changes_a_short_text() -> None:
    """Exhaustive: all that can be around a cut from characters that some pattern treats in its own way."""
    before, behind = "aS'9 \n", "a'9 \n\u0301"
    seen = sum(
        check(f"{''.join(left)}s {''.join(right)}")
        for left in itertools.product(before, repeat=3)
        for right in itertools.product(behind, repeat=1)
    )
    seen += sum(check(f"x'{left} {''.join(right)}") for left in "sLd" for right in itertools.product(behind, repeat=3))
    assert seen > 1900


@pytest.mark.full
def test_every_letter_of_the_rule_is_a_letter_to_all() -> None:
    """In each pattern, whatever its table of Unicode, two of them and the space before them are one piece."""
    assert len(PATTERNS) >= 7
    letters = [chr(p) for p in range(0x10000) if not 0xD800 <= p < 0xE000 and places(f"-{chr(p)} y".encode())]
    assert len(letters) > 24_000
    assert {"a", "Z", "я", "ع", "क", "た", "서", "你"} < set(letters)
    words = [f" {letter}{letter}" for letter in letters]
    for pattern in PATTERNS:
        assert regex.findall(pattern, "".join(words)) == words
        one_by_one = [token for word in words for token in encoding(pattern).encode_ordinary(word)]
        assert encoding(pattern).encode_ordinary("".join(words)) == one_by_one


def test_other_places_are_left_alone() -> None:
    """Behind what is no letter to every pattern, and before what may continue a word."""
    for text in ["a's", "a1", "1 a", "e\u0301 a", "! a", "a\u0301", "a\u200b", "a\n", "é a", "a", " a", "ab"]:
        assert places(text.encode()) == []


@pytest.mark.full(but=["gigatoken-*", "tiktoken-*"])
@pytest.mark.parametrize("rule", ["words", None])
@pytest.mark.parametrize("engine", [*FAST_ENGINES, "tiktoken"])
def test_long_documents_have_the_tokens_of_one_call(
    engine: str, rule: CutRule | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With places to cut everywhere, somewhere, at the very end, or nowhere."""
    monkeypatch.setattr(encoder, "PASSAGE_BYTES", 300)
    dashes = "-" * 2000
    texts = ["before", "some words " * 300, f"{dashes}a b{dashes}c d", dashes, "的一，" * 500, f"{dashes}a b", ""]
    found = cut_rules.make_encoder(engine, rule).encode_documents(Texts.from_strings(texts))
    assert [tokens.tolist() for tokens in found] == [reference.encode(text) for text in texts]


def test_the_longest_uncut_piece_depends_on_the_text_alone() -> None:
    """And not on how long pieces should be, if it is longer than that."""
    chooser = random.Random(5)
    for _ in range(200):
        text = "".join(chooser.choices(["a b", "-", "-" * 50], [1, 20, 3], k=chooser.randrange(1, 200)))
        data = memoryview(text.encode())
        stretches = re.split(r"(?<=a)(?= )", text)
        longest = max(map(len, stretches))
        for piece_bytes in (1, 20, 150):
            boundaries = [0, *(cut.position for cut in find_cuts(data, piece_bytes, "words")), len(data)]
            pieces = [end - start for start, end in itertools.pairwise(boundaries)]
            assert max(pieces) == longest or max(pieces) <= piece_bytes


@pytest.mark.parametrize("rule", ["words", None])
def test_a_text_too_long_to_be_encoded_whole_is_refused(rule: CutRule | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its length, the most, and the vocabulary; one byte less is encoded."""
    cut_rules.use_limits(monkeypatch, 1000)
    encode = cut_rules.make_encoder("tiktoken", rule).encode_documents
    assert encode(Texts.from_strings(["-" * 1000]))[0].tolist() == reference.encode("-" * 1000)
    with pytest.raises(UnencodableError, match=r"1,001 bytes without .* gpt2 .* at most 1,000"):
        encode(Texts.from_strings(["fine", "-" * 1001]))


def test_the_sample_obeys_the_rule() -> None:
    """Of a long document the part is compared that ends at a cut of its rule; without a rule, the whole."""
    prose = "some words, and more. " * 2000
    for rule in ("gpt2", "words"):
        part = _comparable(prose, rule)
        assert SAMPLE_BYTES - 100 < len(part) <= SAMPLE_BYTES
        assert reference.encode(prose)[: len(reference.encode(part))] == reference.encode(part)
    assert _comparable(prose, "words")[-1].isalpha()
    assert _comparable("-" * 20_000, "words") == ""
    assert _comparable(prose, None) == prose
    assert _comparable(prose * 30, None) == ""
