"""Real text for tests and benchmarks, as parquet files in FineWeb-Edu's schema.

FINEWEB_SHARDS_CORPUS names a folder of them. Without it they are made of the demo's text, which configs/demo.toml names
(the source files of Python's standard library), so that every clone runs the same tests.
"""

from __future__ import annotations

import glob
import os
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import reference

VARIABLE = "FINEWEB_SHARDS_CORPUS"
DEMO = Path(__file__).parent.parent.parent / "configs" / "demo.toml"
ROW_GROUPS = 8


def corpus_files(scratch: Path, documents: int | None = None) -> list[Path]:
    """The files of the corpus, or as many files with about so many documents of each, spread over it. What is not there
    is written into `scratch`."""
    if folder := os.environ.get(VARIABLE):
        files = sorted(Path(folder).glob("*.parquet"))
        assert files, f"{VARIABLE}={folder}: there is no parquet file."
        return files if documents is None else [write_some(scratch, file, documents) for file in files]
    names = demo_names()
    step = 1 if documents is None else max(1, len(names) // 2 // documents)
    half = len(names) // 2
    return [
        write_demo(scratch / "000_00000.parquet", names[:half:step]),
        write_demo(scratch / "001_00000.parquet", names[half::step]),
    ]


def write_some(scratch: Path, file: Path, documents: int) -> Path:
    """A copy of the file with documents from all over it."""
    table = pq.read_table(file)
    rows = list(range(0, len(table), max(1, len(table) // documents)))
    return write_table(table.take(rows), scratch / file.name)


def write_table(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path, row_group_size=-(-len(table) // ROW_GROUPS))
    return path


def read_texts(file: Path) -> list[str]:
    """The documents of one file of the corpus."""
    texts: list[str] = pq.read_table(file, columns=["text"])["text"].to_pylist()
    return texts


def demo_names() -> list[str]:
    """The files that the demo reads."""
    patterns = tomllib.loads(DEMO.read_text())["input"]
    folder = sysconfig.get_path("stdlib")
    found = (glob.iglob(pattern.replace("{stdlib}", folder), recursive=True) for pattern in patterns)
    return sorted({name for names in found for name in names if os.path.isfile(name)})


def write_demo(path: Path, names: Sequence[str]) -> Path:
    """One document a source file, with true token counts."""
    texts = [Path(name).read_text("utf-8", "replace") for name in names]
    counts = map(len, reference.encoding().encode_ordinary_batch(texts, num_threads=2))
    rows = [
        {
            "text": text,
            "id": f"<urn:demo:{number}>",
            "dump": "demo",
            "url": Path(name).as_uri(),
            "file_path": name,
            "language": "en",
            "language_score": 1.0,
            "token_count": count,
            "score": 3.0,
            "int_score": 3,
        }
        for number, (name, text, count) in enumerate(zip(names, texts, counts, strict=True))
    ]
    return write_table(pa.Table.from_pylist(rows), path)
