"""`make bench-tokenizers`: how fast each tokenizer's own library is, and we are with it, in one run.

The tokenizers come out of packages on PyPI that have them inside; they are not committed. The library encodes one
document after the other, as a plain script would; ours is the whole program, with shards on the disk, as parent and
workers together. Both are counted in MB of text for each second of processor time, on text that neither has seen.

    python benchmarks/tokenizer_speed.py [--rounds 3] [NAME …]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from bench_corpus import DATA, Corpus, find_corpora
from measure import Spent, run_program
from programs import build_words

from fineweb_shards.events import Observer
from fineweb_shards.run.config import Config
from fineweb_shards.run.tokenizer import find_definition
from fineweb_shards.tokenizers.references import make_reference
from fineweb_shards.tokenizers.trial import try_engines

FOLDER = DATA / "tokenizers"
RESULTS = Path(__file__).parent / "tokenizer_speed.md"
LONGEST_SECONDS = 10.0  # of a library alone
_INSIDE = "litellm/litellm_core_utils/tokenizers/"
# Name to package and path in it.
PACKED = {
    "cl100k_base": ("litellm", f"{_INSIDE}9b5ad71b2ce5302211f9c61530b329a4922fc6a4"),
    "o200k_base": ("litellm", f"{_INSIDE}fb374d419588a4632f3f557e76b4b70aebbca790"),
    "llama3": ("llama-models", "llama_models/llama3/tokenizer.model"),
    "qwen": ("dashscope", "dashscope/resources/qwen.tiktoken"),
    "deepseek": ("litellm", f"{_INSIDE}deepseek_tokenizer.json"),
    "anthropic (NFKC)": ("litellm", f"{_INSIDE}anthropic_tokenizer.json"),
}


@dataclass(frozen=True)
class Tokenizer:
    """A row: a name, and the flags that choose it."""

    name: str
    flags: dict[str, str]

    def words(self) -> list[str]:
        return [word for name, value in self.flags.items() for word in (f"--{name}", value)]


@dataclass(frozen=True)
class Speed:
    """MB of text for each second of processor time."""

    reference: float
    ours: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: gpt2, {', '.join(PACKED)}, …")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    corpora = find_corpora()
    chosen = [one for one in list_tokenizers(corpora.small) if one.name in options.names or not options.names]
    rows = []
    for tokenizer in chosen:
        print(f"{tokenizer.name} …", file=sys.stderr)
        speeds = [measure(tokenizer, corpora.part, corpora.small) for _ in range(options.rounds)]
        rows.append(show_row(tokenizer, speeds))
    table = "\n".join(
        [
            "| tokenizer | ids | reference, MB/s | encoded by | fineweb-shards, MB/s | |",
            "|---|---:|---:|---|---:|---:|",
            *rows,
        ]
    )
    print(table)
    if not options.names:
        RESULTS.write_text(f"{__doc__.partition('    python')[0].strip()}\n\n{table}\n")


def list_tokenizers(corpus: Corpus) -> list[Tokenizer]:
    """All tokenizers: those of packages, and two that are made here."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = [Tokenizer("gpt2", {"tokenizer": "gpt2"})]
    for name, (package, path) in PACKED.items():
        found.append(Tokenizer(name, {"tokenizer": str(unpack(package, path))}))
    ranks = FOLDER / "32768.tiktoken"
    if not ranks.exists():
        gpt2 = Path(__file__).parent.parent / "fineweb_shards" / "tokenizers" / "gpt2.tiktoken"
        ranks.write_bytes(b"".join(gpt2.read_bytes().splitlines(keepends=True)[:32_767]))
    nanochat = {"tokenizer": str(ranks), "pattern": "nanochat", "eot": "32767"}
    sentences = train(FOLDER / "sentencepiece.model", corpus)
    return [*found, Tokenizer("nanochat's pattern", nanochat), Tokenizer("SentencePiece", {"tokenizer": sentences})]


def unpack(package: str, path: str) -> Path:
    """Take a file out of a package, which is fetched if it is not there."""
    final = FOLDER / Path(path).name
    if package == "llama-models":
        final = FOLDER / "llama3.tiktoken"
    if not final.exists():
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
            subprocess.run(words, check=True)
            with zipfile.ZipFile(next(Path(folder).iterdir())) as wheel, wheel.open(path) as file:
                final.write_bytes(file.read())
    return final


def train(path: Path, corpus: Corpus) -> str:
    """Train a SentencePiece model of 16,384 ids on a few of the documents."""
    if not path.exists():
        import sentencepiece

        texts = documents_of(corpus)[:2000]
        with open(path, "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text[:4000] for text in texts),
                model_writer=file, vocab_size=16_384, model_type="bpe", byte_fallback=True, minloglevel=2,
            )  # fmt: skip
    return str(path)


def measure(tokenizer: Tokenizer, corpus: Corpus, small: Corpus) -> Speed:
    """The library on the small corpus, we on the larger one, both from the first token on."""
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        scratch = Path(folder)
        reference = reference_speed(tokenizer, small, scratch)
        few = run_ours(tokenizer, small, scratch / "few")
        many = run_ours(tokenizer, corpus, scratch / "many")
        seconds = many.own + many.others - few.own - few.others  # without start and end
        return Speed(reference, (corpus.bytes - small.bytes) / seconds / 1e6)


def run_ours(tokenizer: Tokenizer, corpus: Corpus, out: Path) -> Spent:
    run = run_program(build_words(out, corpus.parquet, *tokenizer.words()), out)
    shutil.rmtree(out)
    return run.spent


def reference_speed(tokenizer: Tokenizer, corpus: Corpus, scratch: Path) -> float:
    definition = find_definition(Config(**tokenizer.flags), None, Observer())
    reference = make_reference(definition.save(scratch / "definition"))
    return speed_of(reference.encode_text, documents_of(corpus))


def speed_of(encode: Callable[[str], list[int]], texts: list[str]) -> float:
    encode("Load what is loaded at the first call.")
    done, begin = 0, time.process_time()
    for text in texts:
        encode(text)
        done += len(text.encode())
        if time.process_time() - begin > LONGEST_SECONDS:
            break
    return done / (time.process_time() - begin) / 1e6


def documents_of(corpus: Corpus) -> list[str]:
    tables = map(partial(pq.read_table, columns=["text"]), corpus.parquet)
    return [text for table in tables for text in table.column("text").to_pylist()]


def show_row(tokenizer: Tokenizer, speeds: list[Speed]) -> str:
    definition = find_definition(Config(**tokenizer.flags), None, Observer())
    with tempfile.TemporaryDirectory() as folder:
        trial = try_engines("auto", definition.save(Path(folder)), definition.special_tokens)
    reference, ours = (median(getattr(one, name) for one in speeds) for name in ("reference", "ours"))
    size, library = definition.vocabulary.size, definition.vocabulary.reference
    return (
        f"| {tokenizer.name} | {size:,} | {reference:.1f} ({library}) | {trial.engine.name} "
        f"| {ours:.1f} | {ours / reference:.1f} x |"
    )


if __name__ == "__main__":
    main()
