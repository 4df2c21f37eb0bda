"""Engines: every one of them is tiktoken, token for token."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import ExactnessError, UsageError
from fineweb_shards.texts import Ids, Texts, replace_surrogates
from fineweb_shards.tokenizers import FAST_ENGINES, resolve_engine
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.encoder import Encoder, UnencodableError
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.trial import GPT2_SHA256, check_engine, digest_tokens, hostile_strings
from fineweb_shards.types import Cursor, TextChunk
from tests.support import reference, runs
from tests.support.documents import HOSTILE, make_documents

NAMES = [*FAST_ENGINES, "tiktoken"]


def encode_all(name: str, texts: list[str]) -> list[list[int]]:
    return [tokens.tolist() for tokens in runs.encoder(name).encode_documents(Texts.from_strings(texts))]


@pytest.mark.promise("bad text can't stop a run")
@pytest.mark.parametrize("name", NAMES)
def test_engine_equals_the_reference(name: str) -> None:
    """On prose, other scripts and hostile documents."""
    texts = make_documents(300) + [text for text in hostile_strings() if text.isprintable()]
    assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.parametrize("name", NAMES)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_engine_equals_the_reference_on_any_text(name: str, texts: list[str]) -> None:
    """On arbitrary Unicode."""
    assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_every_code_point_in_context(name: str) -> None:
    """Every character of the first plane, between letters, so that its class decides the pieces."""
    texts = [
        "".join(f"a{chr(point)}{chr(point)}b " for point in range(start, start + 256))
        for start in range(0, 0x10000, 256)
        if not 0xD800 <= start < 0xE000
    ]
    assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.promise("bad text can't stop a run")
@pytest.mark.parametrize("name", FAST_ENGINES)
def test_new_characters_are_what_tiktoken_takes_them_for(name: str) -> None:
    """Engines have newer tables of Unicode than tiktoken: U+0C5C is a letter to gigatoken, and to tiktoken it is not.
    Each character that is new, or not assigned, alone in a text; all others many at a time."""
    spans = [(0x800, 0x2000), (0xA000, 0xB000), (0x10000, 0x1F000), (0x2A6D0, 0x2B740), (0x323A0, 0x323C0)]
    points = [point for span in spans for point in range(*span)]
    unassigned = [chr(point) for point in points if unicodedata.category(chr(point)) == "Cn"]
    texts = [f" {char}'s a{char}b1" for char in [*unassigned[::7], "\u088f", "\u0c5c", "\ua7ce", "\U00010940"]]
    others = [char for char in map(chr, points) if unicodedata.category(char) != "Cn"]
    blocks = (others[first : first + 64] for first in range(0, len(others), 64))
    texts += ["".join(f" {char}'s a{char}b1" for char in block) for block in blocks]
    assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.soak
@pytest.mark.promise("bad text can't stop a run")
@pytest.mark.parametrize("name", FAST_ENGINES)
def test_every_character_alone(name: str) -> None:
    """All 1,112,064 of them."""
    for first in range(0, 0x110000, 0x8000):
        points = (point for point in range(first, first + 0x8000) if not 0xD800 <= point < 0xE000)
        texts = [f" {chr(point)}'s a{chr(point)}b1" for point in points]
        assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.promise("bad text can't stop a run")
@pytest.mark.parametrize("name", NAMES)
def test_lone_surrogates_become_what_tiktoken_makes_of_them(name: str) -> None:
    """A str from JSON may hold half a character; tiktoken replaces it."""
    texts = ["a\ud800b", "\udfff", "\ud83d\ude00", "fine", "x\ud800\udc00\ud800"]
    assert encode_all(name, texts) == [reference.encode(text) for text in texts]


@pytest.mark.full(but=["gigatoken"])
@pytest.mark.promise("a tokenizer's exception loses no document")
@pytest.mark.parametrize("name", NAMES)
def test_a_million_spaces_before_a_letter(name: str) -> None:
    """tiktoken panics on these (tiktoken#400); we give the tokens it would have: for this text they are one token a
    space, the last one with the letter, as in shorter runs that tiktoken can do."""
    short = reference.encode(" " * 5000 + "x")
    assert short == [*reference.encode(" ") * 4999, *reference.encode(" x")]
    text = " " * 1_100_000 + "x"
    assert encode_all(name, [text]) == [[*reference.encode(" ") * 1_099_999, *reference.encode(" x")]]


@pytest.mark.promise("bad text can't stop a run")
@pytest.mark.parametrize("name", NAMES)
def test_eot_is_never_made_from_text(name: str) -> None:
    """A literal <|endoftext|> is ordinary text."""
    (tokens,) = encode_all(name, ["<|endoftext|>"])
    assert tokens == reference.encode("<|endoftext|>")
    assert reference.EOT not in tokens


class Wrong(Engine):
    """An engine that gets one character wrong."""

    name = "fastokens"

    def __init__(self, bad: str) -> None:
        self._bad = bad
        self._right = TiktokenEngine()

    def encode(self, texts: Texts) -> list[Ids]:
        return self._right.encode(Texts.from_strings(text.replace(self._bad, "?") for text in texts))


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


class Panicking(Engine):
    """An engine that can't do one document."""

    name = "fastokens"

    def encode(self, texts: Texts) -> list[Ids]:
        raise PanicException("panicked")


@pytest.mark.promise("the vocabulary is GPT-2's, token for token")
def test_the_self_test_expects_what_tiktoken_makes() -> None:
    """The hash that the self-test compares with is that of tiktoken's own tokens."""
    tokens = [np.array(reference.encode(text), np.uint32) for text in hostile_strings()]
    assert digest_tokens(tokens) == GPT2_SHA256


def test_self_test_passes_without_loading_tiktoken() -> None:
    """A right engine is let through by the hash alone: the reference is not even built."""
    for name in NAMES:
        vocabulary_reference = TiktokenEngine()
        check_engine(runs.encoder(name).encode_documents, name, vocabulary_reference, GPT2_SHA256)
        assert "encoding" not in vars(vocabulary_reference)


def test_self_test_finds_a_border_in_the_wrong_place() -> None:
    """The same ids, divided otherwise among the documents, are refused too."""

    class Shifted(Wrong):
        def encode(self, texts: Texts) -> list[Ids]:
            ids = self._right.encode(texts)
            return [*ids[:-2], np.append(ids[-2], ids[-1][:1]), ids[-1][1:]]

    with pytest.raises(ExactnessError, match="self-test"):
        check_engine(Shifted("no such text").encode, "x", TiktokenEngine(), GPT2_SHA256)


@pytest.mark.parametrize("wrong", [50256, 50257, 65536 + 7, 2**32 - 1])
def test_an_id_that_no_text_has_is_refused(wrong: int) -> None:
    """Also if it would become a good one where ids are narrowed to 16 bits; EOT is none of them."""

    class Large(Wrong):
        def encode(self, texts: Texts) -> list[Ids]:
            return [*self._right.encode(texts)[:-1], np.array([5, wrong, 6], np.uint32)]

    encoder = Encoder(Large("no such text"), TiktokenEngine(), eot_first=True, seed=0)
    with pytest.raises(ExactnessError, match=f"made token {wrong}, which can.t occur in text"):
        encoder.encode(TextChunk(Texts.from_strings(["one", "two"]), Cursor(0, 0), None), "a.txt")


def test_self_test_finds_a_wrong_engine() -> None:
    """One wrong character is enough to be refused, by its string."""
    with pytest.raises(ExactnessError, match="u180e"):
        check_engine(Wrong("\u180e").encode, "wrong", TiktokenEngine(), GPT2_SHA256)


def test_sample_finds_a_wrong_engine_and_names_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference during the run stops it, naming file and document."""
    monkeypatch.setattr("fineweb_shards.tokenizers.encoder.SAMPLE_ONE_IN", 1)
    encoder = Encoder(Wrong("q"), TiktokenEngine(), eot_first=True, seed=0)
    chunk = TextChunk(Texts.from_strings(["good", "a quick one"]), Cursor(0, 7), None)
    with pytest.raises(ExactnessError, match=r"document 2 of some\.parquet.*position 7.*a quick one"):
        encoder.encode(chunk, "some.parquet")


@pytest.mark.full
def test_sample_covers_documents_as_often_as_it_says() -> None:
    """Over many chunks one document in SAMPLE_ONE_IN is chosen, whatever the chunk's size."""
    import random

    from fineweb_shards.tokenizers.encoder import SAMPLE_ONE_IN, choose_documents

    for size in (1, 300, 5000):
        chunks = 200_000 // size
        chosen = sum(len(choose_documents(size, random.Random(i))) for i in range(chunks))
        assert chosen == pytest.approx(chunks * size / SAMPLE_ONE_IN, rel=0.25)


def test_long_documents_are_sampled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long document a passage is compared, and the right engine passes."""
    monkeypatch.setattr("fineweb_shards.tokenizers.encoder.SAMPLE_ONE_IN", 1)
    text = "Some prose with q in it. " * 4000
    chunk = TextChunk(Texts.from_strings([text]), Cursor(0, 0), None)
    runs.encoder("auto").encode(chunk, "right.txt")
    with pytest.raises(ExactnessError):
        Encoder(Wrong("q"), TiktokenEngine(), eot_first=True, seed=0).encode(chunk, "wrong.txt")


@pytest.mark.promise("a tokenizer's exception loses no document")
def test_what_an_engine_raises_on_is_told_apart() -> None:
    """Anything an engine raises, even a Rust panic, is one error that names the engine."""
    encoder = Encoder(Panicking(), TiktokenEngine(), eot_first=True, seed=0)
    with pytest.raises(UnencodableError, match="fastokens raised PanicException: panicked"):
        encoder.encode_documents(Texts.from_strings(HOSTILE))
    assert encoder.fallback is not None


def test_eot_on_either_side() -> None:
    """EOT before each document, or after it; none where a document only goes on."""
    strings = ["one", "", "two words"]
    parts, texts = [reference.encode(text) for text in strings], Texts.from_strings(strings)
    eot = [reference.EOT]
    reference_engine = TiktokenEngine()
    first = Encoder(reference_engine, reference_engine, eot_first=True, seed=0)
    last = Encoder(reference_engine, reference_engine, eot_first=False, seed=0)
    whole = TextChunk(texts, Cursor(0, 0), None)
    middle = TextChunk(Texts.from_strings(texts), Cursor(0, 0), None, starts_mid_document=True, ends_mid_document=True)
    assert first.encode(whole, "").tokens.tolist() == [*eot, *parts[0], *eot, *parts[1], *eot, *parts[2]]
    assert last.encode(whole, "").tokens.tolist() == [*parts[0], *eot, *parts[1], *eot, *parts[2], *eot]
    assert first.encode(middle, "").tokens.tolist() == [*parts[0], *eot, *parts[1], *eot, *parts[2]]
    assert last.encode(middle, "").tokens.tolist() == [*parts[0], *eot, *parts[1], *eot, *parts[2]]


def test_surrogates_are_replaced_as_tiktoken_does() -> None:
    """The replacement is tiktoken's own expression."""
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("\ud83d\ude00") == "\U0001f600"


def test_unknown_and_missing_engines_are_named() -> None:
    """A misspelt engine is told with the names that exist."""
    with pytest.raises(UsageError, match="nonsense") as error:
        resolve_engine("nonsense")
    assert "tiktoken" in error.value.hint
    assert resolve_engine("auto").name == "gigatoken"
