"""`make bench-shuffle`: what a shuffle costs: the same build with and without `--shuffle`, of long and short documents.

The text is common words, which repeat, so that the engine has seen every one: no other engine makes a smaller share of
the time of what the shuffle adds. Processor time and wall time are those of the whole command less those of a build of
one document; the lowest of all rounds counts. Memory (PSS of all processes) and disk (all files of the output folder,
shards included) are of one more run, because looking takes time.

    python benchmarks/shuffle.py [--tokens 4B] [--documents 1000 10] [--rounds 2] [--folder DIR]

By default there are 300M tokens, or 3M documents if these are fewer. The disk must hold piles and shards: 4 bytes per
token, and 16 per document.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from measure import end_program, run_program, start_program
from memory import PeakMemory

from fineweb_shards.units import parse_count, show_bytes, show_count

# Each is one token of GPT-2, and so is each with a space before it.
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "as", "with", "his", "they")
ROW_GROUP_TOKENS = 1_000_000
MOST_TOKENS, MOST_DOCUMENTS = 300_000_000, 3_000_000  # by default: as many take some seconds
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Cost:
    """What builds took at the least, in seconds."""

    processor: float
    wall: float


def write_texts(path: Path, document_tokens: int, tokens: int) -> None:
    """Write documents of so many tokens each, EOT included. Row groups repeat."""
    chooser = random.Random(0)
    count = max(1, min(tokens, ROW_GROUP_TOKENS) // document_tokens)
    texts = [" ".join(chooser.choices(WORDS, k=document_tokens - 1)) for _ in range(count)]
    table = pa.table({"text": texts})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(max(1, tokens // (count * document_tokens))):
            writer.write_table(table)


def words_of(path: Path, out: Path, *, shuffled: bool) -> list[str]:
    words = [sys.executable, "-m", "fineweb_shards", "build", "--input", str(path), "--out", str(out), "--no-verify"]
    return [*words, "--val-tokens", "5", "--quiet", *(["--shuffle", "1"] if shuffled else [])]


def cheapest(words: list[str], out: Path, rounds: int) -> Cost:
    runs = [run_program(words, out) for _ in range(rounds)]
    return Cost(min(run.spent.own + run.spent.others for run in runs), min(run.seconds for run in runs))


@contextlib.contextmanager
def peak_disk(folder: Path) -> Iterator[list[int]]:
    """Look at the size of all files in a folder; the list ends with the highest."""
    peaks, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_SECONDS):
            peaks.append(max(peaks[-1], disk_bytes(folder)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def disk_bytes(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total


def peaks_of(words: list[str], out: Path) -> tuple[int, int]:
    """Return the most memory of all processes, and the most disk."""
    process, _ = start_program(words, out, None)
    with PeakMemory(process.pid) as memory, peak_disk(out) as disk:
        end_program(process)
    return memory.peak_bytes, disk[-1]


def measure(folder: Path, document_tokens: int, tokens: int, rounds: int) -> str:
    """Return a row of the table."""
    one, many, out = folder / "one.parquet", folder / "many.parquet", folder / "out"
    write_texts(one, document_tokens, document_tokens)
    write_texts(many, document_tokens, tokens)
    costs = []
    for shuffled in (False, True):
        start, whole = (cheapest(words_of(path, out, shuffled=shuffled), out, rounds) for path in (one, many))
        costs.append(Cost(whole.processor - start.processor, whole.wall - start.wall))
    peaks = [peaks_of(words_of(many, out, shuffled=shuffled), out) for shuffled in (False, True)]
    plain, shuffle = costs
    added = (shuffle.processor - plain.processor) / tokens * document_tokens
    cells = [
        f"{document_tokens:,}",
        show_count(tokens),
        f"{plain.processor / tokens * 1e9:.1f}",
        f"{shuffle.processor / tokens * 1e9:.1f}",
        f"{shuffle.processor / plain.processor:.2f}",
        f"{shuffle.wall / plain.wall:.2f}",
        f"{added * 1e6:.2f}",
        *(" → ".join(show_bytes(figures[i]) for figures in peaks) for i in (0, 1)),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """\
| tokens per document | tokens | ns a token without | with | processor time: ratio | wall time: ratio | \
µs added a document | peak memory | peak disk |
|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=parse_count)
    parser.add_argument("--documents", type=int, nargs="*", default=[1000, 10], help="tokens of a document")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    print(HEAD)
    for document_tokens in options.documents:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            tokens = options.tokens or min(MOST_TOKENS, MOST_DOCUMENTS * document_tokens)
            print(measure(Path(folder), document_tokens, tokens, options.rounds), flush=True)


if __name__ == "__main__":
    main()
