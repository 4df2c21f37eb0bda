"""gigatoken: what is peculiar to it. What holds for every engine is in test_engines.py."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from fineweb_shards.errors import ShardError, UsageError
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers import gigatoken_engine, resolve_engine, vocabulary_files
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.vocabulary import Vocabulary
from tests.support import reference
from tests.support.corpus import corpus_files, read_texts
from tests.support.promises import Tries


@pytest.mark.promise("bad text can't stop a run")
def test_a_new_tokenizer_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the cache is emptied, also in the middle of a chunk, the tokens are tiktoken's."""
    monkeypatch.setattr(gigatoken_engine, "_CACHE_BYTES", -1)
    monkeypatch.setattr(gigatoken_engine, "_LOOK_EVERY_BYTES", 3000)
    monkeypatch.setattr(gigatoken_engine, "_CALL_BYTES", 500)
    engine = GigatokenEngine()
    loads, load = [], engine._load
    monkeypatch.setattr(GigatokenEngine, "_load", lambda self: loads.append(1) or load())
    texts = ["Some prose. " * 30, "", "word", "other words " * 300] * 6
    engine._until_look_bytes = 0
    found = engine.encode(Texts.from_strings(texts))
    assert [tokens.tolist() for tokens in found] == [reference.encode(text) for text in texts]
    assert len(loads) > 1


@pytest.mark.promise("bad text can't stop a run")
def test_texts_of_one_call_do_not_touch(tries: Tries) -> None:
    """Whatever a text ends or begins with, it is encoded as if it were alone; also an empty one."""
    pieces = [" ", "  ", "\n", "\r\n", "\t", "a", "The", "'", "'s", "12", "é", "中", "🙂", "\u0091", "\u0092"]
    pieces += ["\u00a0", "\u0085", "\u3000", "\0", "fineweb-shards: ", "<|endoftext|>", "...", "\u0301", "\ufeff"]
    chooser = random.Random(7)
    engine = GigatokenEngine()
    for _ in tries(50, 5000):
        lengths = [chooser.choice([0, 1, 2, 3, 9]) for _ in range(20)]
        texts = ["".join(chooser.choices(pieces, k=length)) for length in lengths]
        found = engine.encode(Texts.from_strings(texts))
        assert [tokens.tolist() for tokens in found] == [reference.encode(text) for text in texts]


@pytest.mark.promise("bad text can't stop a run")
def test_a_text_with_the_border_in_it_gets_its_tokens() -> None:
    """Alone or among others, whole or in parts."""
    boundary = gigatoken_engine.BOUNDARY
    engine = GigatokenEngine()
    halves = [boundary[:-1], boundary[1:], boundary[-1] + boundary[:-1], boundary[1:] + boundary[0]]
    for texts in ([boundary], ["before", f"a {boundary} b", "after"], [boundary, boundary], ["", boundary, ""], halves):
        found = engine.encode(Texts.from_strings(texts))
        assert [tokens.tolist() for tokens in found] == [reference.encode(text) for text in texts]


@pytest.mark.full
def test_memory_stays_bounded_on_text_of_new_words() -> None:
    """100 MB of random words, which fill the cache fastest, leave no more than its bound behind."""
    code = """
import numpy as np
from fineweb_shards.system.machine import own_memory_bytes
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine

def encode_words(seed):
    chooser = np.random.default_rng(seed)
    letters = chooser.integers(97, 123, 2**20, dtype=np.uint8)
    letters[::7] = 32
    data = letters.tobytes()
    engine.encode(Texts.from_pieces([data[i : i + 4096] for i in range(0, len(data), 4096)]))

engine = GigatokenEngine()
encode_words(0)
before = own_memory_bytes()
for seed in range(1, 100):
    encode_words(seed)
    print(own_memory_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert max(map(int, done.stdout.split())) < 180 * 2**20  # without the bound it is more than 500 MB


def test_awkward_is_not_loaded() -> None:
    """It would cost every worker a third of a second."""
    code = """
import sys
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine
assert len(GigatokenEngine().encode(Texts.from_strings(["a text"]))[0]) == 2
print([name for name in ("awkward", "pandas", "tiktoken") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.promise("the vocabulary is GPT-2's, token for token")
def test_damaged_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is checked before gigatoken reads it."""
    monkeypatch.setattr(vocabulary_files, "RANKS_FILE", "NOTICE.md")
    with pytest.raises(ShardError, match="damaged"):
        GigatokenEngine()


def test_another_vocabulary_is_refused() -> None:
    """Rather than encoded as GPT-2."""
    with pytest.raises(UsageError, match="made-up"):
        GigatokenEngine(Vocabulary("made-up", "ab" * 32, 70_000, 69_999))


@pytest.mark.full
def test_the_engine_for_what_another_can_not_encode() -> None:
    """Beside gigatoken and fastokens it is tiktoken; beside tiktoken the first of the others."""
    tiktoken = TiktokenEngine()
    names = {}
    for name in ("gigatoken", "fastokens", "tiktoken"):
        fallback = Encoder(resolve_engine(name)(), tiktoken, eot_first=True, seed=0).fallback
        assert fallback is not None
        names[name] = fallback._engine.name
    assert names == {"gigatoken": "tiktoken", "fastokens": "tiktoken", "tiktoken": "gigatoken"}


@pytest.mark.soak
@pytest.mark.promise("bad text can't stop a run")
def test_the_whole_corpus(tmp_path: Path) -> None:
    """Every document of the corpus has tiktoken's tokens."""
    texts = read_texts(corpus_files(tmp_path))
    found = GigatokenEngine().encode(Texts.from_strings(texts))
    for text, tokens in zip(texts, found, strict=True):
        assert tokens.tolist() == reference.encode(text)
