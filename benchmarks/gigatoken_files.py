"""gigatoken's own way to encode files, with its own threads: all in memory, no check, no hash, no file.

    python benchmarks/gigatoken_files.py OUT FILE.parquet …

Prints the number of tokens, without EOTs.
"""

from __future__ import annotations

import sys

from bare_loop import begin_mark, load_tokenizer
from gigatoken import ParquetFileSource


def main(out: str, paths: list[str]) -> None:
    mark = begin_mark(out)
    tokenizer = load_tokenizer()
    mark()
    tokens = tokenizer.encode_files(ParquetFileSource(paths, "text"), parallel=True)
    print(len(tokens.layout.content.data))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
