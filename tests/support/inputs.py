"""The same documents in every form that the program reads."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path: Path, documents: Sequence[str | None], rows: int = 100, **more: object) -> Path:
    """`rows` documents in a row group."""
    table = pa.table({"text": pa.array(documents, pa.string()), "id": list(range(len(documents)))})
    pq.write_table(table, path, row_group_size=rows, **more)
    return path


def write_jsonl(path: Path, documents: Sequence[str | None]) -> Path:
    lines = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(documents)]
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return path


def write_csv(path: Path, documents: Sequence[str], delimiter: str = ",", line_end: str = "\n") -> Path:
    """Every second record has all its fields in quotes."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        some, every = (
            csv.writer(file, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        some.writerow(["id", "text", "note"])
        for i, text in enumerate(documents):
            (every if i % 2 or "\r" in text else some).writerow([i, text, 'a "note", and\nmore' * (i % 3)])
    return path


def write_text(path: Path, documents: Sequence[str], separator: str = "<|endoftext|>") -> Path:
    path.write_bytes(separator.join(documents).encode())
    return path


def write_gzip(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data, 1))
    return path


def write_zstd(path: Path, data: bytes) -> Path:
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(data)
    return path
