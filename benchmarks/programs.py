"""What `make bench` runs: each program with its input, the command, and how many tokens it must make."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from corpus import Corpus

from fineweb_shards.layouts import LAYOUTS

HERE = Path(__file__).parent
# Several shards even of a small corpus, so that closing a shard is part of what is measured.
SHARD_TOKENS = "10M"
PARQUET = "fineweb-shards, parquet"
ONE_LOOP, TWO_LOOPS = "bare loop, one process", "bare loop, two processes"


@dataclass(frozen=True)
class Program:
    """One row of the table."""

    name: str
    words: list[str]
    out: Path
    tokens: int
    stdin: str | None = None
    layout: str = ""  # ours only

    def count_tokens(self, output: bytes) -> int:
        """How many it made: a script prints it, ours are in the manifest."""
        if not self.layout:
            return int(output)
        return sum(int(shard["tokens"]) for shard in read_shards(self.out))

    def check(self, output: bytes) -> None:
        """A benchmark of a program that leaves something out is none."""
        found = self.count_tokens(output)
        if found != self.tokens:
            sys.exit(f"{self.name}: {found:,} tokens, and not {self.tokens:,}")

    def check_files(self) -> dict[str, str]:
        """The SHA-256 of every file of ours, read from the disk, if it is what the manifest says. A file that
        grows has several records, each with the hash of a part: those are left to `fineweb-shards verify`."""
        names = Counter(shard["name"] for shard in read_shards(self.out))
        shards = {one["name"]: one["sha256"] for one in read_shards(self.out) if names[one["name"]] == 1}
        for name, digest in shards.items():
            if hashlib.sha256((self.out / name).read_bytes()).hexdigest() != digest:
                sys.exit(f"{self.name}: {name} is not what the manifest says")
        return shards


def read_shards(out: Path) -> list[dict[str, str]]:
    shards: list[dict[str, str]] = json.loads((out / "manifest.json").read_text())["shards"]
    return shards


def build_words(out: Path, inputs: list[str], *flags: str) -> list[str]:
    """Our command. With a normal priority: the others have it too, and the machine may have more to do."""
    words = [sys.executable, "-m", "fineweb_shards", "build", *inputs, "--out", str(out), "--quiet"]
    return [*words, "--no-verify", "--priority", "normal", "--shard-tokens", SHARD_TOKENS, *flags]


def our_program(
    name: str, corpus: Corpus, out: Path, inputs: list[str], *flags: str,
    stdin: str | None = None, layout: str = "build-nanogpt",
) -> Program:  # fmt: skip
    words = build_words(out, inputs, "--layout", layout, *flags)
    tokens = corpus.tokens + corpus.documents  # an EOT each
    return Program(f"fineweb-shards, {name}", words, out, tokens, stdin, layout)


def other_programs(corpus: Corpus, part: Corpus, scratch: Path) -> list[Program]:
    """What is compared with. The original's loop has the part only, because it is slow."""
    python, out = sys.executable, scratch / "other"
    words = [python, str(HERE / "original.py"), str(out), *part.parquet]
    programs = [Program("fineweb.py's loop", words, out, part.tokens + part.documents)]
    if importlib.util.find_spec("gigatoken") is None:
        print("gigatoken is not installed: its rows are left out.", file=sys.stderr)
        return programs
    words = [python, str(HERE / "gigatoken_files.py"), str(out), *corpus.parquet]
    programs.append(Program("gigatoken's own file path", words, out, corpus.tokens))
    return [*programs, bare_loop(corpus, 1, out), bare_loop(corpus, 2, out)]


def bare_loop(corpus: Corpus, processes: int, out: Path) -> Program:
    words = [sys.executable, str(HERE / "bare_loop.py"), str(out), str(processes), *corpus.parquet]
    return Program(ONE_LOOP if processes == 1 else TWO_LOOPS, words, out, corpus.tokens)


def form_programs(corpus: Corpus, scratch: Path) -> list[Program]:
    """Ours, with the same documents in every form: they all have to make the same bytes."""
    out = scratch / "ours"
    forms = {
        "JSON lines": "jsonl", ".jsonl.gz": "jsonl.gz", ".jsonl.zst": "jsonl.zst",
        "text": "txt", ".txt.gz": "txt.gz", ".txt.zst": "txt.zst",
    }  # fmt: skip
    return [
        our_program("parquet", corpus, out, corpus.parquet),
        *(our_program(name, corpus, out, [corpus.form(ending)]) for name, ending in forms.items()),
        our_program("standard input", corpus, out, ["-"], stdin=corpus.form("txt")),
    ]


def setting_programs(corpus: Corpus, part: Corpus, scratch: Path) -> list[Program]:
    """Ours, from parquet with other settings."""
    out = scratch / "settings"
    layouts = [name for name in LAYOUTS if name != "build-nanogpt"]
    return [
        our_program("--val-ratio 0.01", corpus, out, corpus.parquet, "--val-ratio", "0.01"),
        *(our_program(f"--layout {name}", corpus, out, corpus.parquet, layout=name) for name in layouts),
        our_program("--engine fastokens", corpus, out, corpus.parquet, "--engine", "fastokens"),
        our_program("--engine tiktoken", part, out, part.parquet, "--engine", "tiktoken"),
    ]
