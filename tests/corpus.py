"""Real text for tests and benchmarks, as parquet files in FineWeb-Edu's schema.

FINEWEB_SHARDS_CORPUS names a folder of them. Without it they are made of the demo's text, which
configs/demo.toml names (the source files of Python's standard library), so that every clone runs the
same tests.
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
import reference

VARIABLE = "FINEWEB_SHARDS_CORPUS"
DEMO = Path(__file__).parent.parent / "configs" / "demo.toml"
ROWS_IN_A_GROUP = 100


def corpus_files(scratch: Path) -> list[Path]:
    """The files of the corpus; those of the demo's text are written into `scratch`."""
    if folder := os.environ.get(VARIABLE):
        files = sorted(Path(folder).glob("*.parquet"))
        assert files, f"{VARIABLE}={folder}: there is no parquet file."
        return files
    names = demo_names()
    half = len(names) // 2
    return [
        write_demo(scratch / f"{n:03}_00000.parquet", p) for n, p in enumerate((names[:half], names[half:]))
    ]


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
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=ROWS_IN_A_GROUP)
    return path
