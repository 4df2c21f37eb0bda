"""`make bench-mix`: a mix of two parts beside the same parts one after the other, and `export --mix` beside a plain
export of as many tokens, by turns.

Both parts have the same weight and all of both is read, so that documents alternate nearly to the end. All in one run,
so that only the ratios count.

    python benchmarks/mix.py [--files FILE.parquet …] [--copies 1] [--rounds 5]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from statistics import median

from bench_corpus import find_corpora
from bucket import Measured, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", help="parquet files with a text column")
    parser.add_argument("--copies", type=int, default=1, help="of each file; encoding repeated text is faster")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shard-tokens", default="20M")
    options = parser.parse_args()
    files = options.files or find_corpora().large.parquet
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [folder / "a", folder / "b"]
        for part, inputs in enumerate(parts):
            inputs.mkdir()
            for copy in range(options.copies):
                for number, file in enumerate(files[part::2] or files):
                    (inputs / f"{copy:03}_{number:03}.parquet").symlink_to(Path(file).resolve())
        settings = ["--shard-tokens", options.shard_tokens, "--val-tokens", "1M"]
        compare(folder, parts, settings, options.rounds)


def compare(folder: Path, parts: list[Path], settings: list[str], rounds: int) -> None:
    """Run all four by turns, and print a table of medians."""
    build = ["build", *settings, "--quiet"]
    export = ["export", *settings, "--no-verify"]
    folders = [folder / f"built-{part.name}" for part in parts]
    for inputs, out in zip(parts, folders, strict=True):
        run(*build, "--input", str(inputs), "--out", str(out))
    joined = folder / "joined"
    given = [f"--part=input={inputs}" for inputs in parts]
    until = ["--mix-until", "all-exhausted"]
    words = {
        "one after the other": [*build, *given],
        "mix": [*build, *(f"{one} weight=1" for one in given), *until],
        "export": [*export, str(joined)],
        "export --mix": [*export, *(f"--mix={one}=1" for one in folders), *until],
    }
    ways = list(words)
    found: dict[str, list[Measured]] = {way: [] for way in ways}
    for _ in range(rounds):  # in turns, because the machine changes its mind
        outs = [joined, *(folder / f"out-{number}" for number in range(1, len(ways)))]
        for way, out in zip(ways, outs, strict=True):
            found[way].append(work_of([*words[way], "--out", str(out)]))
        for out in outs:
            shutil.rmtree(out)
    print("| | wall time | processor time |\n|---|---|---|")
    walls = {way: median(one.wall for one in found[way]) for way in ways}
    processors = {way: median(one.processor for one in found[way]) for way in ways}
    for way in ways:
        print(f"| {way} | {walls[way]:.2f} s | {processors[way]:.2f} s |")
    for way, other in (("mix", "one after the other"), ("export --mix", "export")):
        ratio, work = walls[way] / walls[other], processors[way] / processors[other]
        print(f"| {way}, times {other} | {ratio:.2f} | {work:.2f} |")


def work_of(words: list[str]) -> Measured:
    """Measure a command without its start: less what it takes once more, when it finds nothing to do."""
    first, again = run(*words), run(*words)
    return Measured(first.wall - again.wall, first.processor - again.processor)


if __name__ == "__main__":
    main()
