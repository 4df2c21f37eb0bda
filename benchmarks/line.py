"""`make bench-line`: the same files from the disk, and from a hub whose CDN is at the end of a line like a real one: 80
ms, 20 MB/s for each connection, 1 Gbit/s for all; in one run, so that only the ratio counts.

The hub (tests/support/standin_hub.py) has a process of its own on the same cores. Its processor time is told, because
the run could have used it.

    python benchmarks/line.py [--files FILE.parquet …] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from bench_corpus import DATA, Corpus, find_corpora
from hub import DATASET, HERE, STAND_IN, measure_speed, serve_folder
from programs import our_program

from fineweb_shards.units import show_bytes, show_count


@dataclass(frozen=True)
class Line:
    """Latency, and speeds in MB/s."""

    latency_ms: float
    connection_mb: float
    line_mb: float

    def words(self) -> list[str]:
        speeds = ["--connection-mb", str(self.connection_mb), "--line-mb", str(self.line_mb)]
        return ["--cdn", "--latency-ms", str(self.latency_ms), *speeds]


@dataclass(frozen=True)
class Remote:
    """One run over the line: its speed, and what the hub says it was asked for."""

    tokens_per_second: float
    told: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=80.0)
    parser.add_argument("--connection-mb", type=float, default=20.0)
    parser.add_argument("--line-mb", type=float, default=125.0)
    options = parser.parse_args()
    line = Line(options.latency_ms, options.connection_mb, options.line_mb)
    corpus = find_corpora(files=options.files).large
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        scratch = Path(folder)
        served = serve_folder(scratch, corpus)
        local: list[float] = []
        remote: list[Remote] = []
        for _ in range(options.rounds):  # in turns, because the machine changes its mind
            local.append(measure_speed(our_program("disk", corpus, scratch / "local", corpus.parquet)))
            remote.append(measure_line(scratch, corpus, served, line))
    report(corpus, line, median(local), remote)


def measure_line(scratch: Path, corpus: Corpus, served: Path, line: Line) -> Remote:
    words = [*STAND_IN, str(served), *line.words()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=HERE.parent) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip().partition("=")[2]
        os.environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(scratch / "home")}
        os.environ["NO_PROXY"] = "127.0.0.1,localhost"
        try:
            speed = measure_speed(our_program("line", corpus, scratch / "remote", [], *DATASET))
        finally:
            server.terminate()
        return Remote(speed, json.loads(server.stdout.read()))


def report(corpus: Corpus, line: Line, disk: float, remote: list[Remote]) -> None:
    """Print a table: the speeds are medians, the counts those of the last round."""
    speed, told = median(run.tokens_per_second for run in remote), remote[-1].told
    fetched, requests = told["content_bytes"], told["requests"]
    limit = line.line_mb * 1e6 * (corpus.tokens + corpus.documents) / fetched
    spent = told["processor_seconds"]
    asked = ", ".join(f"{requests.get(kind, 0):,} {kind}" for kind in ("api", "resolve", "cdn"))
    name = f"{line.latency_ms:g} ms, {line.connection_mb:g} MB/s a connection, {line.line_mb:g} MB/s in all"
    print(f"| from the disk | {show_count(disk)} tokens/s |")
    print(f"| {name} | {show_count(speed)} tokens/s, {speed / disk:.0%} of the disk's |")
    print(f"| the line's limit | {show_count(limit)} tokens/s, {speed / limit:.0%} of it used |")
    print(f"| requests | {asked}; at most {told['most_at_once'].get('cdn', 0)} of the CDN at once |")
    print(f"| fetched | {show_bytes(fetched)}, {fetched / text_bytes(corpus):.3f} of the text's bytes |")
    print(f"| the stand-in's processor time | {spent:.2f} s, {spent / fetched * 1e9:.2f} s a GB |")


def text_bytes(corpus: Corpus) -> int:
    """The bytes of the column with the text, as they are in the files."""
    total = 0
    for path in corpus.parquet:
        metadata = pq.read_metadata(path)
        column = metadata.schema.names.index("text")
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        total += sum(group.column(column).total_compressed_size for group in groups)
    return total


if __name__ == "__main__":
    main()
