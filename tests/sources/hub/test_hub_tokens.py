"""Columns of ids on the hub: parquet by ranges, of which only that column is fetched, and JSON lines."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import forked, reference, runs
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

REPO = "user/climb"
_CHOOSER = random.Random(5)
ROWS = [[_CHOOSER.randrange(reference.EOT) for _ in range(_CHOOSER.randint(200, 400))] for _ in range(600)]


def write_parquet(rows: list[list[int]]) -> bytes:
    """Twenty rows in a group, beside a column that is larger than the ids."""
    table = pa.table(
        {
            "raw": [_CHOOSER.randbytes(10_000) for _ in rows],
            "tokens": pa.array(rows, pa.list_(pa.int64())),
            "token_count": [len(row) for row in rows],
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=20, write_statistics=False)
    return buffer.getvalue()


FILES = {
    "a.parquet": write_parquet(ROWS[:400]),
    "b.jsonl": "".join(json.dumps({"tokens": row}) + "\n" for row in ROWS[400:]).encode(),
}


@pytest.mark.full(but=["a.parquet"])
@pytest.mark.parametrize("name", FILES)
def test_ids_from_the_hub(home: Path, tmp_path: Path, name: str) -> None:
    """The rows as they are; of parquet little more than their column is fetched."""
    rows = ROWS[:400] if name == "a.parquet" else ROWS[400:]
    with StandInHub([Repository(REPO, {name: FILES[name]})]) as hub:
        done = forked.run_command(
            "build", "--dataset", REPO, "--tokens-column", "tokens", "--out", tmp_path / "out",
            "--shard-tokens", "40k", "--batch-bytes", "40k", "--workers", "1",
            HF_ENDPOINT=hub.endpoint, HF_HOME=str(home), NO_PROXY="127.0.0.1,localhost",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        fetched = sum(r.bytes_sent for r in hub.requests if r.is_content and r.path.endswith(name))
    stream = [token for row in rows for token in (reference.EOT, *row)]
    expected = reference.shard_files(np.array(stream, np.uint16), 40_000)
    assert runs.shards_in(tmp_path / "out") == expected
    if name == "a.parquet":
        parsed = pq.ParquetFile(io.BytesIO(FILES[name])).metadata
        groups = [parsed.row_group(i) for i in range(parsed.num_row_groups)]
        ids = sum(group.column(1).total_compressed_size for group in groups)
        assert groups[0].column(1).path_in_schema == "tokens.list.element"
        # So short a file is read by the plan as well, and each process reads the footer: 64 KiB at least.
        assert fetched < 2.1 * ids + 4 * (parsed.serialized_size + 65_536) < len(FILES[name]) / 2
