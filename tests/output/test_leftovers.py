"""What a killed run leaves behind is removed by the next one; what somebody else may be writing is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineweb_shards.run.build import build
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.watching.screen import Screen
from tests.support import runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet

SETTINGS = {"shard_tokens": 8000, "last_shard": "drop", "engine": "tiktoken", "workers": 1}


@pytest.mark.parametrize("complete", [True, False])
def test_temporary_files_are_removed_at_the_next_start(tmp_path: Path, complete: bool) -> None:
    """Of a dropped shard, of the manifest, of the monitor's files; even where nothing is left to do."""
    path = write_parquet(tmp_path / "a.parquet", make_documents(40, seed=31))
    out = tmp_path / "out"
    runs.build_inline(out, path, **SETTINGS)
    expected = runs.shards_in(out)
    if not complete:
        runs.forget_after(out, 1)
    left = ["edufineweb_t_000009.npy.tmp", "manifest.json.tmp", "index.tmp", "heartbeat.json.1.2.tmp"]
    for name in [*left, "report.html.3.4.tmp"]:
        (out / WORK_FOLDER / name).write_bytes(b"half")
    os.utime(out / WORK_FOLDER / "heartbeat.json.1.2.tmp", (0, 0))
    if complete:
        job = runs.job_of(out, path, **SETTINGS)
        build(job.config, screen=Screen(), command="")
    else:
        runs.build_inline(out, path, **SETTINGS)
    assert [one.name for one in (out / WORK_FOLDER).glob("*.tmp")] == ["report.html.3.4.tmp"]
    assert runs.shards_in(out) == expected
