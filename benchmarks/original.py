"""A plain reimplementation of the loop of build-nanogpt's fineweb.py, for comparison.

    python original.py OUT FILE.parquet …

Prints the number of tokens; OUT/first appears with the first document's tokens, so that the pool's start can be left
out. It is kinder than the original: only the text column is read, and documents come from memory.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine

SHARD_TOKENS = 100_000_000
EOT = 50256
encoding = TiktokenEngine().encoding


def tokenize(document: dict[str, str]) -> np.ndarray:
    tokens = [EOT]
    tokens.extend(encoding.encode_ordinary(document["text"]))
    array = np.array(tokens)
    assert (array >= 0).all()
    assert (array < 2**16).all()
    return array.astype(np.uint16)


def documents(paths: list[str]) -> Iterator[dict[str, str]]:
    for path in paths:
        yield from pq.read_table(path, columns=["text"]).to_pylist()


def main(out: str, paths: list[str]) -> None:
    os.makedirs(out, exist_ok=True)
    buffer = np.empty(SHARD_TOKENS, np.uint16)
    count, shard = 0, 0
    with multiprocessing.Pool(max(1, (os.cpu_count() or 1) // 2)) as pool:
        for tokens in pool.imap(tokenize, documents(paths), chunksize=16):
            if not count and not shard:
                Path(out, "first").touch()
            if count + len(tokens) >= SHARD_TOKENS:
                rest = SHARD_TOKENS - count
                buffer[count:] = tokens[:rest]
                np.save(f"{out}/shard_{shard:06d}", buffer)
                shard, tokens, count = shard + 1, tokens[rest:], 0
            buffer[count : count + len(tokens)] = tokens
            count += len(tokens)
        np.save(f"{out}/shard_{shard:06d}", buffer[:count])
    print(shard * SHARD_TOKENS + count)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
