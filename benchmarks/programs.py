"""What `make bench` runs: each program with its input, the command, and how many tokens it must make."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench_corpus import Corpora, Corpus

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.system.machine import usable_cores

HERE = Path(__file__).parent
# Several shards even of a part of the text, so that closing a shard is part of what is measured.
SMALL_SHARDS = 10_000_000  # tokens
PARQUET, PARQUET_PART = "fineweb-shards, parquet", "fineweb-shards, parquet, less text"
ONE_LOOP, LOOP_EACH_CORE = "bare loop, one process", "bare loop, a process for each core"
GIGATOKEN = "gigatoken's own file path"


@dataclass(frozen=True)
class Program:
    """One row of the table."""

    name: str
    words: list[str]
    out: Path
    text_bytes: int
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
        """The SHA-256 of every file of ours, read from the disk, if it is what the manifest says. A file that grows has
        several records, each with the hash of a part: those are left to `fineweb-shards verify`."""
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
    return [*words, "--no-verify", "--priority", "normal", *flags]


def our_program(
    name: str, corpus: Corpus, out: Path, inputs: list[str], *flags: str,
    stdin: str | None = None, layout: str = "build-nanogpt", shard_tokens: int = 100_000_000,
) -> Program:  # fmt: skip
    # With little text the default, 100M tokens for validation, would leave nothing to train on.
    shard_tokens = min(shard_tokens, corpus.tokens * 2 // 3)
    words = build_words(out, inputs, "--layout", layout, "--shard-tokens", str(shard_tokens), *flags)
    tokens = corpus.tokens + corpus.documents  # an EOT each
    return Program(name, words, out, corpus.bytes, tokens, stdin, layout)


def limit_programs(corpus: Corpus, scratch: Path) -> list[Program]:
    """What is compared with the limit: loops that do nothing else, gigatoken, and ours with its defaults."""
    ours = our_program(PARQUET, corpus, scratch / "ours", corpus.parquet)
    if importlib.util.find_spec("gigatoken") is None:
        print("gigatoken is not installed: its rows are left out.", file=sys.stderr)
        return [ours]
    out = scratch / "other"
    return [
        script(GIGATOKEN, "gigatoken_files.py", corpus, out, corpus.tokens),
        script(ONE_LOOP, "bare_loop.py", corpus, out, corpus.tokens, "1"),
        script(LOOP_EACH_CORE, "bare_loop.py", corpus, out, corpus.tokens, str(usable_cores())),
        ours,
    ]


def script(name: str, file: str, corpus: Corpus, out: Path, tokens: int, *words: str) -> Program:
    whole = [sys.executable, str(HERE / file), str(out), *words, *corpus.parquet]
    return Program(name, whole, out, corpus.bytes, tokens)


def original_program(corpus: Corpus, scratch: Path) -> Program:
    tokens = corpus.tokens + corpus.documents
    return script("fineweb.py's loop", "original.py", corpus, scratch / "other", tokens)


def form_programs(corpus: Corpus, scratch: Path) -> list[Program]:
    """Ours, with the same documents in every form: they all have to make the same bytes."""
    out = scratch / "ours"
    forms = {
        "JSON lines": "jsonl", ".jsonl.gz": "jsonl.gz", ".jsonl.zst": "jsonl.zst",
        "text": "txt", ".txt.gz": "txt.gz", ".txt.zst": "txt.zst",
    }  # fmt: skip
    return [
        our_program(PARQUET_PART, corpus, out, corpus.parquet, shard_tokens=SMALL_SHARDS),
        *(our_form(name, corpus, out, corpus.form(ending)) for name, ending in forms.items()),
        our_form("standard input", corpus, out, "-", stdin=corpus.form("txt")),
    ]


def our_form(name: str, corpus: Corpus, out: Path, file: str, stdin: str | None = None) -> Program:
    return our_program(f"fineweb-shards, {name}", corpus, out, [file], stdin=stdin, shard_tokens=SMALL_SHARDS)


def setting_programs(corpora: Corpora, scratch: Path) -> list[Program]:
    """Ours, from parquet with other settings."""
    layouts = [name for name in LAYOUTS if name != "build-nanogpt"]
    return [
        our_setting("--val-ratio 0.01", corpora.part, scratch),
        *(our_setting(f"--layout {name}", corpora.part, scratch, layout=name) for name in layouts),
        our_setting("--engine fastokens", corpora.part, scratch),
        our_setting("--engine tiktoken", corpora.small, scratch),
    ]


def our_setting(setting: str, corpus: Corpus, scratch: Path, layout: str = "build-nanogpt") -> Program:
    flags = () if "layout" in setting else setting.split()
    return our_program(
        f"fineweb-shards, {setting}", corpus, scratch / "settings", corpus.parquet, *flags,
        layout=layout, shard_tokens=SMALL_SHARDS,
    )  # fmt: skip
