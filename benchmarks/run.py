"""`make bench`: speed, processor time and memory, ours beside others, all in one run on the same documents.

Machines differ and are noisy: the programs take turns, several rounds long, a figure is the median, and the ratios say
more than the figures. Writes benchmarks/results.md, docs/speed.svg and the ratios in the README (results.py,
picture.py). What is made is checked: every program has to make all tokens, and every form of the documents the same
bytes.

    python benchmarks/run.py [--quick] [--rounds 3] [--files FILE.parquet …]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench_corpus import DATA, Corpora, find_corpora
from measure import Measurement, peak_memory, run_program
from picture import draw_picture
from programs import (
    GIGATOKEN,
    PARQUET_PART,
    Program,
    form_programs,
    limit_programs,
    original_program,
    our_program,
    setting_programs,
)
from results import Results, Row, update_readme, write_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a 32nd of the text, one round, no memory")
    parser.add_argument("--rounds", type=int, help="how often each program runs (default: 3)")
    parser.add_argument("--files", nargs="*", help="your own parquet files instead, with a column text")
    options = parser.parse_args()
    corpora = find_corpora(quick=options.quick, files=options.files)
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        bench = Bench(corpora, Path(folder), with_memory=not options.quick)
        results = bench.run(options.rounds or (1 if options.quick else 3))
    print("\n" + results.as_text())
    if not options.quick:
        write_results(results)
        update_readme()
        draw_picture()


class Bench:
    """All programs with their input."""

    def __init__(self, corpora: Corpora, scratch: Path, *, with_memory: bool) -> None:
        self._corpora = corpora
        self._with_memory = with_memory
        small = corpora.small
        self._small = our_program("fineweb-shards, little text", small, scratch / "ours", small.parquet)
        limits = limit_programs(corpora.large, scratch)
        # The same with less text: what a run takes at its start and its end is not in the difference.
        self._few = [program for program in limit_programs(corpora.part, scratch) if program.name != GIGATOKEN]
        self._forms = form_programs(corpora.part, scratch)
        self._programs = [original_program(small, scratch), *limits, *self._forms, *setting_programs(corpora, scratch)]

    def run(self, rounds: int) -> Results:
        # Memory first, which also warms the cache of the disk.
        peaks = {program.name: self._weigh(program) for program in self._programs}
        runs: dict[str, list[Measurement]] = {program.name: [] for program in self._programs}
        few: dict[str, list[Measurement]] = {program.name: [] for program in self._few}
        digests = {}
        for number in range(rounds):  # in turns, because the machine changes its mind
            for program in self._programs:
                say(f"round {number + 1} of {rounds}: {program.name}")
                measured = run_program(program.words, program.out, program.stdin)
                program.check(measured.output)
                runs[program.name].append(measured)
                if program.layout:
                    digests[program.name] = program.check_files()
            self._check_same_bytes(digests)
            for program in self._few:
                say(f"round {number + 1} of {rounds}: {program.name}, less text")
                few[program.name].append(run_program(program.words, program.out, program.stdin))
        rows = [summarize(program, runs[program.name], peaks[program.name]) for program in self._programs]
        further_tokens = self._corpora.large.tokens - self._corpora.part.tokens
        further = {
            name: further_time(short, runs[name], further_tokens) for name, short in few.items() if further_tokens
        }
        return Results(rows, self._corpora, rounds, self._weigh(self._small), further)

    def _weigh(self, program: Program) -> int:
        if not self._with_memory:
            return 0
        say(f"memory: {program.name}")
        return peak_memory(program.words, program.out, program.stdin)

    def _check_same_bytes(self, digests: dict[str, dict[str, str]]) -> None:
        for program in self._forms:
            if digests[program.name] != digests[PARQUET_PART]:
                sys.exit(f"{program.name}: the shards are not those of parquet")


def summarize(program: Program, runs: list[Measurement], peak_bytes: int) -> Row:
    """The median of each figure."""
    speeds, parents, workers = [], [], []
    for run in runs:
        tokens = program.tokens - run.first_tokens
        speeds.append(tokens / (run.seconds - run.first_seconds))
        parents.append(run.parent_seconds / tokens * 1e9)
        workers.append(run.worker_seconds / tokens * 1e9)
    return Row(
        program.name, program.text_bytes, median(speeds), median(run.seconds for run in runs),
        median(run.first_seconds for run in runs), median(parents), median(workers), peak_bytes,
    )  # fmt: skip


def further_time(few: list[Measurement], many: list[Measurement], tokens: int) -> tuple[float, float]:
    """Nanoseconds of processor time of parent and workers for each further token, without what a run of any length
    takes at its start and its end: the difference between a short run and a long one."""
    pairs = [(short.spent, long.spent) for short, long in zip(few, many, strict=True)]
    parent = median(long.own - short.own for short, long in pairs)
    workers = median(long.others - short.others for short, long in pairs)
    return parent / tokens * 1e9, workers / tokens * 1e9


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
