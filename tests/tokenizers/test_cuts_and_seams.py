"""Cuts and seams: a text cut anywhere we cut has exactly the tokens of the whole."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers import FAST_ENGINES, cuts, encoder
from fineweb_shards.tokenizers.cuts import SeamMender
from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.vocabulary import GPT2
from tests.support import reference

ALPHABET = [*"ab'strelvmd 9!\n\r\t-=", "  ", "你", "，", "é", "\u0301", "\u3000", "\x85", "\u180e"]
ALPHABET += ["\ufffd", "\0", "🙂", "'s", "'ll", " '", "aaaa", "    "]
nasty = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=60).map("".join)


@cache
def make_mender() -> SeamMender:
    return SeamMender(reference.encode, load_token_bytes(GPT2))


@pytest.fixture
def mender() -> SeamMender:
    return make_mender()


def all_cuts(data: bytes) -> list[cuts.Cut]:
    """Every place that find_cut could choose, not only the last one."""
    found = []
    for high in range(1, len(data)):
        cut = cuts.find_cut(data, high - 1, high, "gpt2")
        if cut is not None:
            found.append(cut)
    return found


def check_all_cuts(text: str, mender: SeamMender) -> int:
    data = text.encode()
    whole = reference.encode(text)
    for cut in (found := all_cuts(data)):
        left = np.array(reference.encode(data[: cut.position].decode()), np.uint16)
        right = np.array(reference.encode(data[cut.position :].decode()), np.uint16)
        if cut.seam:
            mend = mender.mend(left, right, left_is_whole=True)
            joined = [*left[: len(left) - mend.left_tokens], *mend.middle, *right[mend.right_tokens :]]
        else:
            joined = [*left, *right]
        assert [int(token) for token in joined] == whole, (text, cut)
    return len(found)


@given(nasty)
def test_every_cut_keeps_the_tokens_of_nasty_texts(text: str) -> None:
    """Whatever characters meet, cutting there and mending gives the tokens of one call."""
    check_all_cuts(text, make_mender())


@given(st.text(max_size=80))
def test_every_cut_keeps_the_tokens_of_any_text(text: str) -> None:
    """The same for arbitrary Unicode."""
    check_all_cuts(text, make_mender())


def test_every_cut_keeps_the_tokens_of_all_short_texts(mender: SeamMender) -> None:
    """Exhaustive: all strings of five from the characters that the pattern cares about."""
    seen = sum(
        check_all_cuts("xy" + "".join(letters) + "yz", mender) for letters in itertools.product("a's 7!\n", repeat=4)
    )
    assert seen > 5_000


@pytest.mark.parametrize("period", ["a", "ab", "aab", "=", "-=", " ", "\n", " \n", "你", "你好", "，", "7", "'"])
def test_periodic_runs_are_mended(period: str, mender: SeamMender) -> None:
    """In a run without any safe place the right half may be out of step to its very end."""
    text = period * 700
    chooser = random.Random(period)
    data = text.encode()
    found = [cut for cut in all_cuts(data) if cut.seam]
    for cut in chooser.sample(found, min(40, len(found))):
        left = np.array(reference.encode(data[: cut.position].decode()), np.uint16)
        right = np.array(reference.encode(data[cut.position :].decode()), np.uint16)
        mend = mender.mend(left, right, left_is_whole=True)
        joined = [*left[: len(left) - mend.left_tokens], *mend.middle, *right[mend.right_tokens :]]
        assert [int(token) for token in joined] == reference.encode(text)


def test_white_space_is_what_tiktoken_takes_for_it() -> None:
    """Our list of white space is tiktoken's `\\s`: two line ends in front of a character stay one token exactly if the
    character is white space too (`\\s+(?!\\S)`)."""
    two_line_ends = reference.encode("\n\n")
    assert len(two_line_ends) == 1
    points = [point for point in range(0x30000) if not 0xD800 <= point < 0xE000]
    found = {chr(p) for p in points if reference.encode(f"\n\n{chr(p)}x")[:1] == two_line_ends}
    assert found == cuts.WHITE_SPACE


@pytest.mark.full
def test_a_window_that_ends_in_white_space_of_several_bytes(mender: SeamMender) -> None:
    """White space before a word is split otherwise than at the end of a text, also at a window's end."""
    chooser = random.Random(4)
    for _ in range(300):
        text = "".join(chooser.choices(["ส", "ว", "ั", " ", "\u2009", "\x85", "\u180e", "\u200b"], k=60))
        check_all_cuts(text, mender)


def check_run_of_line_ends(left_count: int, right_count: int) -> None:
    """Encoded in one, and in two halves that are mended, it has the same tokens."""
    from tests.support import runs

    count = left_count + right_count
    text = "x" + "\n" * count + "a"
    (tokens,) = runs.encoder("auto").encode_documents(Texts.from_strings([text]))
    # By the rule that a shorter run shows: pairs of line ends, then the last one alone.
    assert reference.encode("x" + "\n" * 7 + "a") == [87, *[628] * 3, 198, 64]
    assert tokens.tolist() == [87, *[628] * ((count - 1) // 2), 198, 64]
    left, right = "x" + "\n" * left_count, "\n" * right_count + "a"
    first, second = runs.encoder("auto").encode_documents(Texts.from_strings([left, right]))
    mend = encoder.make_mender(GPT2).mend(first, second, left_is_whole=True)
    joined = [*first[: len(first) - mend.left_tokens].tolist(), *mend.middle.tolist()]
    assert [*joined, *second[mend.right_tokens :].tolist()] == tokens.tolist()


def test_a_run_of_line_ends_longer_than_several_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window of a seam may grow to a whole block; it is then encoded in passages itself."""
    monkeypatch.setattr(encoder, "PASSAGE_BYTES", 5000)
    check_run_of_line_ends(4001, 22_000)


@pytest.mark.soak
@pytest.mark.promise("a tokenizer's exception loses no document")
def test_a_run_of_line_ends_longer_than_tiktoken_can_do() -> None:
    """The same, beyond a million of them."""
    check_run_of_line_ends(200_001, 1_100_000)


def test_english_is_always_cut_safely() -> None:
    """In prose a safe place is near, so that no seam is ever needed."""
    data = ("The quick brown fox doesn't jump over 13 lazy dogs, it walks.\n" * 50).encode()
    for high in range(100, len(data) - 100, 37):
        cut = cuts.find_cut(data, high - 64, high, "gpt2")
        assert cut is not None
        assert not cut.seam


@pytest.mark.parametrize("junk", [b"\x80", b"\xff", b"\xe5\xa5", b"\xf0\x9f\x99", b"\xc3", b"a\x80"])
def test_garbage_bytes_are_cut_where_decoding_does_not_change(junk: bytes) -> None:
    """Invalid UTF-8 decodes to the same text in two halves as in one."""
    data = junk * 60
    places = all_cuts(data)
    assert places
    for cut in places:
        halves = data[: cut.position].decode("utf-8", "replace") + data[cut.position :].decode("utf-8", "replace")
        assert halves == data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "text",
    ["a" * 5000, "的一是不了" * 900, " " * 3000 + "x", "word " * 2000, "''" * 2000, "'s" * 2000, "\n" * 4000 + "y"],
)
@pytest.mark.parametrize("passage_bytes", [300, 1000])
@pytest.mark.parametrize("engine", [*FAST_ENGINES, "tiktoken"])
def test_long_documents_are_encoded_in_passages(
    engine: str, text: str, passage_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document in many passages has exactly the tokens of one encode_ordinary call."""
    from tests.support import runs

    monkeypatch.setattr(encoder, "PASSAGE_BYTES", passage_bytes)
    texts = ["before", text, "after"]
    found = runs.encoder(engine).encode_documents(Texts.from_strings(texts))
    assert [tokens.tolist() for tokens in found] == [reference.encode(text) for text in texts]
