"""A small sample-10BT with as many files as the real one, the expected shards, and a build of it."""

from __future__ import annotations

import io
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import forked, reference, runs
from tests.support.documents import make_documents
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import FINEWEB_EDU_COMMIT, Repository

REPO = "HuggingFaceFW/fineweb-edu"
FILES = 14
ROWS_PER_FILE = 20
SHARD_TOKENS = 10_000
WORKERS = 2
READERS = WORKERS + 1  # the parent reads footers
DATASET = ("--dataset", REPO, "--name", "sample-10BT")
FLAGS = ("--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "1k", "--workers", str(WORKERS))


def documents_of(number: int) -> list[str]:
    """The documents of one file; those that hurt are tested elsewhere."""
    return [f"File {number}. {text}" for text in make_documents(ROWS_PER_FILE + 16, seed=900 + number)][:ROWS_PER_FILE]


@cache
def parquet_of(number: int, rows: int) -> bytes:
    """A file in FineWeb-Edu's schema, `rows` to a row group."""
    texts = documents_of(number)
    size = len(texts)
    table = pa.table(
        {
            "text": texts,
            "id": [f"<urn:uuid:{number}-{row}>" for row in range(size)],
            "dump": ["CC-MAIN-2024-10"] * size,
            "url": [f"https://example.org/{row}" for row in range(size)],
            "file_path": ["s3://commoncrawl/x"] * size,
            "language": ["en"] * size,
            "language_score": [0.9] * size,
            "token_count": [len(reference.encode(text)) for text in texts],
            "score": [3.0] * size,
            "int_score": [3] * size,
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows)
    return buffer.getvalue()


def sample_files(rows: int = 1, files: int = FILES) -> dict[str, bytes]:
    return {f"sample/10BT/{number:03d}_00000.parquet": parquet_of(number % FILES, rows) for number in range(files)}


def sample_repository(rows: int = 1, files: int = FILES, token: str | None = None) -> Repository:
    """The sample; with a token it is private."""
    return Repository(
        REPO, sample_files(rows, files), commit=FINEWEB_EDU_COMMIT, access="private" if token else "public", token=token
    )


@cache
def expected_shards(files: int = FILES) -> dict[str, bytes]:
    """By the reference."""
    documents = [text for number in range(files) for text in documents_of(number % FILES)]
    return reference.shard_files(reference.stream(documents), SHARD_TOKENS)


def environment(hub: StandInHub, home: Path, **more: str) -> dict[str, Any]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", **more}


def build(hub: StandInHub, home: Path, out: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A build in one process."""
    flags = ("--out", out, *FLAGS, *words)
    return forked.run_command("build", *DATASET, *flags, **environment(hub, home, **more))


def build_with_workers(
    hub: StandInHub, home: Path, out: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """The real command, where what its processes do together is the point."""
    return runs.run_command("build", *DATASET, "--out", out, *FLAGS, *words, **environment(hub, home, **more))


def resolves(hub: StandInHub) -> int:
    """How often the hub was asked where a parquet file is, or for one."""
    return sum(record.path.partition("?")[0].endswith(".parquet") for record in hub.requests_of("resolve"))


def refused(hub: StandInHub) -> int:
    """How many requests were beyond a quota."""
    return sum(record.status == 429 for record in hub.requests)
