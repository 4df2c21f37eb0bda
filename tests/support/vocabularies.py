"""Tokenizers to test with, made here, and what the library that each is for makes of a text: nothing of ours.

Real ones can't be committed; these have what is peculiar to them: another pattern, ids of four bytes, tokens that no
merge reaches, a normalizer, a space before the text, bytes for what is not in the vocabulary.
"""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests.support import reference
from tests.support.documents import make_documents

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Texts that are peculiar to one of them, besides the hostile documents.
PECULIAR = [
    "</s> <s> <unk> [END] <|end|> <|endoftext|> <0x0A> ▁ ▁▁a",
    "e\u0301 \u00e9 \ufb01 \u1e9b\u0323 Å \u212b",
    " one space before, two behind  ",
    "\u180e \u180ea a\u180e's",
    "1234567 12 1\n(argument).\n\n'S 'LL",
]


@dataclass(frozen=True)
class Tokenizer:
    """A file, the flags that go with it, and its own library as the judge."""

    name: str
    flags: tuple[str, ...]
    size: int
    eot: int
    encode: Callable[[str], list[int]]
    fast: str  # the engine that is expected to be chosen
    has_normalizer: bool = False

    def stream(self, documents: list[str], *, eot_first: bool = True) -> list[int]:
        """All documents, one call each, with EOT before or after them."""
        tokens: list[int] = []
        for document in documents:
            encoded = self.encode(document)
            tokens += [self.eot, *encoded] if eot_first else [*encoded, self.eot]
        return tokens


def write_ranks(path: Path, ranks: dict[bytes, int]) -> Path:
    path.write_text("".join(f"{base64.b64encode(t).decode()} {rank}\n" for t, rank in ranks.items()))
    return path


@cache
def gpt2_ranks() -> dict[bytes, int]:
    pairs = (line.split() for line in reference.RANKS.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def small_ranks(count: int) -> dict[bytes, int]:
    """The first ranks of GPT-2: the vocabulary that training had made by then."""
    return {token: rank for token, rank in gpt2_ranks().items() if rank < count}


@cache
def large_ranks() -> dict[bytes, int]:
    """More than 65,536: GPT-2's, and pairs of its tokens, of which some are never reached by merges, because another
    merge comes before."""
    ranks, chooser = dict(gpt2_ranks()), random.Random(5)
    words = [token for token in ranks if token.isalpha() and len(token) > 2]
    while len(ranks) < 66_000:
        start = chooser.choice([b"", b" "])
        ranks.setdefault(start + chooser.choice(words) + chooser.choice(words), len(ranks))
    return ranks


def _tiktoken(ranks: dict[bytes, int], pattern: str) -> Callable[[str], list[int]]:
    return tiktoken.Encoding("t", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def nanochat(folder: Path) -> Tokenizer:
    """A rank file of 32,768 ids with nanochat's pattern."""
    ranks = small_ranks(32_759)
    path = write_ranks(folder / "ranks.tiktoken", ranks)
    flags = ("--tokenizer", str(path), "--pattern", "nanochat", "--eot", "32767")
    return Tokenizer("nanochat", flags, 32_768, 32_767, _tiktoken(ranks, NANOCHAT), "fastokens")


def cl100k(folder: Path) -> Tokenizer:
    """66,000 ranks with cl100k's pattern, given as an expression."""
    ranks = large_ranks()
    path = write_ranks(folder / "large.tiktoken", ranks)
    flags = ("--tokenizer", str(path), "--pattern", CL100K, "--eot", "66000")
    return Tokenizer("cl100k", flags, 66_001, 66_000, _tiktoken(ranks, CL100K), "gigatoken")


def _texts() -> list[str]:
    return [*make_documents(120, seed=77), *PECULIAR]


def _judge(path: Path) -> Callable[[str], list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def llama3(folder: Path) -> Tokenizer:
    """A `tokenizer.json` like Llama 3's: its pattern, bytes, special tokens behind the others, and settings that
    shorten a text, which must not be obeyed."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "llama3.json"))
    data = json.loads((folder / "llama3.json").read_text())
    (folder / "plain.json").write_text(json.dumps(data | {"truncation": None}))
    size = tokenizer.get_vocab_size()
    flags = ("--tokenizer", str(folder / "llama3.json"))
    return Tokenizer("llama3.json", flags, size, size - 1, _judge(folder / "plain.json"), "gigatoken")


def normalizing(folder: Path) -> Tokenizer:
    """A `tokenizer.json` with a normalizer (NFC, as GPT-NeoX has), added tokens that are text, and EOT as the first
    id."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens(["    ", "  "])
    tokenizer.save(str(folder / "nfc.json"))
    flags = ("--tokenizer", str(folder / "nfc.json"))
    size = tokenizer.get_vocab_size()
    return Tokenizer("nfc.json", flags, size, 0, _judge(folder / "nfc.json"), "gigatoken", has_normalizer=True)


def llama2(folder: Path) -> Tokenizer:
    """A `tokenizer.json` like Llama 2's: a space before the text, ▁ for spaces, bytes for the unknown."""
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=names, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(_texts(), trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in specials]
    (folder / "llama2.json").write_text(json.dumps(data))
    flags, size = ("--tokenizer", str(folder / "llama2.json")), len(data["model"]["vocab"])
    judge = _judge(folder / "llama2.json")
    return Tokenizer("llama2.json", flags, size, 2, judge, "fastokens", has_normalizer=True)


def sentence_pieces(folder: Path) -> Tokenizer:
    """A SentencePiece model of 1,000 ids, trained here."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_documents(120, seed=77)),
        model_writer=model,
        vocab_size=1000,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
    )
    path = folder / "small.model"
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    flags = ("--tokenizer", str(path))
    judge = processor.encode
    return Tokenizer("small.model", flags, 1000, 2, judge, "sentencepiece", has_normalizer=True)


MAKERS = (nanochat, cl100k, llama3, normalizing, llama2, sentence_pieces)
