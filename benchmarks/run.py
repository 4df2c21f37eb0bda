"""`make bench`: speed and memory against the loop of build-nanogpt's fineweb.py.

Everything is measured in one run on the same files, because machines differ and are noisy: read the
ratios, not the figures. Writes benchmarks/results.md. The files are those of FINEWEB_SHARDS_CORPUS, or the
demo's text (tests/support/corpus.py).

    python benchmarks/run.py [--files FILE.parquet …] [--repeat 8] [--line-bytes 1GB]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from memory import PeakMemory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from corpus import corpus_files

from fineweb_shards.system.machine import usable_cores
from fineweb_shards.units import parse_bytes, show_bytes, show_count

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--repeat", type=int, default=16, help="how often our program reads them")
    parser.add_argument("--line-bytes", type=parse_bytes, default=10**9, help="length of the single line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        scratch = Path(folder)
        files = options.files or [str(path) for path in corpus_files(scratch)]
        rows = [
            *compare_speed(scratch, files, options.repeat),
            *compare_memory(scratch, files, options.repeat),
            *measure_line(scratch, files, options.line_bytes),
        ]
    write_results(rows)


def start_build(out: Path, inputs: list[str], *flags: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "fineweb_shards", "build", "--fresh", "--yes", "--no-verify"]
    words += ["--out", str(out), *flags, *(f"--input={path}" for path in inputs)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure_speed(out: Path, inputs: list[str], *flags: str) -> float:
    """Tokens a second, from the first token to the end of the process."""
    process = start_build(out, inputs, *flags)
    while process.poll() is None and not list(out.glob(".fineweb-shards/*.npy.tmp")):
        time.sleep(0.01)
    begin = time.monotonic()
    if process.wait():
        sys.exit(f"the build failed with exit code {process.returncode}")
    seconds = time.monotonic() - begin
    shards = json.loads((out / "manifest.json").read_text())["shards"]
    return float(sum(shard["tokens"] for shard in shards)) / seconds


def measure_memory(out: Path, inputs: list[str], *flags: str) -> int:
    """Peak PSS of the command and its workers. A run of its own, because looking takes time."""
    process = start_build(out, inputs, *flags)
    with PeakMemory(process.pid) as memory:
        if process.wait():
            sys.exit(f"the build failed with exit code {process.returncode}")
    return memory.peak_bytes


def compare_speed(scratch: Path, files: list[str], repeat: int) -> list[tuple[str, str]]:
    """Tokens a second from the first token on: start-up is left out on both sides."""
    words = [sys.executable, str(HERE / "original.py"), str(scratch / "original"), *files]
    theirs = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    their_speed = theirs["tokens"] / theirs["seconds"]
    rows = [("fineweb.py's loop", f"{show_count(their_speed)} tokens/s")]
    for engine in ("tiktoken", "fastokens"):
        times = repeat if engine == "fastokens" else 1
        speed = measure_speed(scratch / engine, files * times, "--engine", engine)
        rows.append(
            (f"fineweb-shards, {engine}", f"{show_count(speed)} tokens/s, **{speed / their_speed:.1f}×**")
        )
    return rows


def compare_memory(scratch: Path, files: list[str], repeat: int) -> list[tuple[str, str]]:
    """The same peak for ten times the input."""
    once = measure_memory(scratch / "once", files * repeat, "--workers", "2")
    tenfold = measure_memory(scratch / "tenfold", files * repeat * 10, "--workers", "2")
    return [
        ("peak memory, 2 workers", show_bytes(once)),
        ("peak memory, ten times the input", f"{show_bytes(tenfold)}, {tenfold / once:.2f}×"),
    ]


def measure_line(scratch: Path, files: list[str], size: int) -> list[tuple[str, str]]:
    """One document on a single line, as long as `size`."""
    path = scratch / "line.txt"
    texts = [text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()]
    line = " ".join(texts).replace("\n", " ").encode()
    with open(path, "wb") as file:
        while file.tell() < size:
            file.write(line[: size - file.tell()])
    speed = show_count(measure_speed(scratch / "line", [str(path)], "--workers", "2"))
    peak = show_bytes(measure_memory(scratch / "line", [str(path)], "--workers", "2"))
    return [(f"one line of {show_bytes(size)}", f"{speed} tokens/s, peak memory {peak}")]


def write_results(rows: list[tuple[str, str]]) -> None:
    title = f"{usable_cores()} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [f"| {title} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    (HERE / "results.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
