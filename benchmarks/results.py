"""The results as a page for people, and the two ratios that the README states."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from bench_corpus import Corpora
from programs import GIGATOKEN, LOOP_EACH_CORE, ONE_LOOP, PARQUET, PARQUET_PART

from fineweb_shards.system.machine import usable_cores
from fineweb_shards.units import show_bytes, show_count

HERE = Path(__file__).parent
RESULTS = HERE / "results.md"
README = HERE.parent / "README.md"
HEAD = [
    "| program | M tokens/s | seconds | first token, s | ns/token | parent | workers | peak memory | text |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
]
ORIGINAL = "fineweb.py's loop"
TIKTOKEN = "fineweb-shards, --engine tiktoken"
# What follows a ratio in the README, by the name of the ratio.
PROMISES = {"parquet": r"times\s+the\s+speed", "tiktoken": r"times\s+with\s+\[tiktoken\]"}
# Below this heading results.md is written by hand.
NOTES = "## What was compared"


@dataclass(frozen=True)
class Row:
    """A program's figures. Speed and processor time are without start-up."""

    name: str
    text_bytes: int
    speed: float  # tokens/s
    seconds: float  # in all
    first_seconds: float
    parent_ns: float  # of processor time per token
    worker_ns: float
    peak_bytes: int

    @property
    def whole_ns(self) -> float:
        return self.parent_ns + self.worker_ns

    def as_line(self) -> str:
        figures = (
            self.speed / 1e6, self.seconds, self.first_seconds, self.whole_ns, self.parent_ns, self.worker_ns
        )  # fmt: skip
        cells = [
            self.name,
            *(f"{figure:.1f}" for figure in figures),
            show_bytes(self.peak_bytes) if self.peak_bytes else "",
            show_bytes(self.text_bytes),
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Results:
    """All rows of one run, and what they were measured with."""

    rows: list[Row]
    corpora: Corpora
    rounds: int
    small_peak: int  # with the small corpus; 0 if memory was not measured
    further: dict[str, tuple[float, float]]  # ns of parent and workers for each further token, by program

    def as_text(self) -> str:
        corpus = self.corpora.large
        machine = f"{usable_cores()} cores, {platform.machine()}, Python {platform.python_version()}"
        size = f"{show_bytes(corpus.bytes)} of text, {show_count(corpus.tokens)} tokens"
        ratios = [f"| {name} | {ratio:.2f}× |" for name, ratio in self.ratios().items()]
        lines = [
            "# Speed and memory", "",
            f"{machine}; {size}", "",
            "One run of `make bench`. The ratios say more than the figures, which differ between machines.",
            "",
            *HEAD, *(row.as_line() for row in self.rows), "",
            "| ratio | |", "|---|---:|", *ratios, "",
            *(f"{name}: each further token takes {sum(ns):.1f} ns of processor time, {ns[0]:.1f} of it in "
              "the parent.\nThat is this run less one with a quarter of the text, so without start and end.\n"
              for name, ns in self.further.items()),
            f"The text is {corpus.source}: {corpus.documents:,} documents.\nOf its 13-grams of tokens, "
            f"{corpus.repeated_ngrams:.1%} occurred before. Rounds: {self.rounds}; a figure is the median.",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def ratios(self) -> dict[str, float]:
        """Those whose rows were measured."""
        rows = {row.name: row for row in self.rows}
        ours, part, original = rows[PARQUET], rows[PARQUET_PART], rows[ORIGINAL]
        found = {
            "speed: parquet / fineweb.py's loop": ours.speed / original.speed,
            "speed: tiktoken / fineweb.py's loop": rows[TIKTOKEN].speed / original.speed,
        }
        if GIGATOKEN in rows:
            found["speed: parquet / gigatoken's own file path"] = ours.speed / rows[GIGATOKEN].speed
            found[f"speed: parquet / {LOOP_EACH_CORE}"] = ours.speed / rows[LOOP_EACH_CORE].speed
            for loop in (LOOP_EACH_CORE, ONE_LOOP):
                found[f"processor time: parquet / {loop}"] = ours.whole_ns / rows[loop].whole_ns
        found["processor time: parent / workers"] = ours.parent_ns / ours.worker_ns
        if PARQUET in self.further:
            parent, workers = self.further[PARQUET]
            for loop in (name for name in self.further if name != PARQUET):
                ratio = (parent + workers) / sum(self.further[loop])
                found[f"... of each further token: parquet / {loop}"] = ratio
            found["... of each further token: parent / workers"] = parent / workers
        for name in ("JSON lines", "text", ".jsonl.gz", ".jsonl.zst", ".txt.gz", ".txt.zst", "standard input"):
            found[f"speed: {name} / parquet"] = rows[f"fineweb-shards, {name}"].speed / part.speed
        if self.small_peak:
            times = self.corpora.large.bytes / self.corpora.small.bytes
            found[f"peak memory: {times:.0f} times the input / once"] = ours.peak_bytes / self.small_peak
        return found


def write_results(results: Results) -> None:
    _, heading, notes = RESULTS.read_text().partition(NOTES)
    RESULTS.write_text(f"{results.as_text()}\n{heading}{notes}")


def update_readme() -> None:
    """Put the measured ratios into its sentence about speed."""
    results, text = RESULTS.read_text(), README.read_text()
    for engine, words in PROMISES.items():
        ratio = re.search(rf"speed: {engine} / fineweb.py's loop \| ([\d.]+)×", results)
        assert ratio is not None
        text = re.sub(rf"[\d.]+(?=\s+{words})", f"{float(ratio[1]):.2g}", text)
    README.write_text(text)
