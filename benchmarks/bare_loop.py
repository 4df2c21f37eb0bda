"""The limit: read parquet, encode, make uint16, and nothing else. Programs come close to it, and no further.

    python benchmarks/bare_loop.py OUT PROCESSES FILE.parquet …

No order between processes, no check, no hash, no file, no resume. Several processes share the files. Prints the number
of tokens, without EOTs; OUT/first appears when all are ready to encode their first document.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import SimpleQueue

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gigatoken import Tokenizer

RANKS = Path(__file__).parent.parent / "fineweb_shards" / "tokenizers" / "gpt2.tiktoken"


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_tiktoken(RANKS, pretokenizer="gpt2")


def as_awkward(column: pa.ChunkedArray) -> ak.Array:
    """The same bytes as arrow's, not copied; only the offsets become those that gigatoken takes."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    _, offsets, data = array.buffers()
    content = ak.contents.NumpyArray(np.frombuffer(data, np.uint8), parameters={"__array__": "char"})
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    index = ak.index.Index64(places.astype(np.int64))
    return ak.Array(ak.contents.ListOffsetArray(index, content, parameters={"__array__": "string"}))


def encode_groups(tokenizer: Tokenizer, paths: list[str], part: int, parts: int) -> int:
    """The number of tokens in every `parts`-th row group."""
    total = number = 0
    for path in paths:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            number += 1
            if number % parts == part:
                texts = as_awkward(file.read_row_group(group, columns=["text"])["text"])
                tokens = tokenizer.encode_batch(texts, parallel=False)
                total += len(np.asarray(tokens.layout.content.data).astype(np.uint16))
    return total


def run_part(paths: list[str], part: int, parts: int, ready: Barrier, results: SimpleQueue[int]) -> None:
    tokenizer = load_tokenizer()
    ready.wait()
    results.put(encode_groups(tokenizer, paths, part, parts))


def main(out: str, processes: int, paths: list[str]) -> None:
    mark = begin_mark(out)
    if processes == 1:
        tokenizer = load_tokenizer()
        mark()
        print(encode_groups(tokenizer, paths, 0, 1))
        return
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(processes + 1), context.SimpleQueue()
    workers = [
        context.Process(target=run_part, args=(paths, part, processes, ready, results)) for part in range(processes)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    mark()
    print(sum(results.get() for _ in workers))
    for worker in workers:
        worker.join()


def begin_mark(out: str) -> Callable[[], None]:
    """What says that start-up is over, for measure.py."""
    Path(out).mkdir(parents=True, exist_ok=True)
    return (Path(out) / "first").touch


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
