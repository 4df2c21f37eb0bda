"""Durable first, named afterwards: the order of the file calls of a whole run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fineweb_shards.output.shard_files import growing_path
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet

DOCUMENTS = make_documents(40, seed=35)


@pytest.mark.promise("a shard is durable before the manifest names it")
def test_a_shard_is_durable_before_the_ledger_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its bytes written, then synced, then its name given, then the folder synced; only then does a manifest name
    it, and that manifest is synced before it gets its own name."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    out = tmp_path / "out"
    trace: list[tuple[str, str]] = []
    named_at: dict[str, int] = {}
    write, fsync, replace = os.write, os.fsync, os.replace

    def traced_write(descriptor: int, data: bytes) -> int:
        trace.append(("write", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        return write(descriptor, data)

    def traced_fsync(descriptor: int) -> None:
        trace.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def traced_replace(source: Path, target: Path) -> None:
        trace.append(("name", Path(target).name))
        replace(source, target)
        if Path(target).name == "manifest.json":
            for shard in json.loads(Path(target).read_text())["shards"]:
                named_at.setdefault(shard["name"], len(trace) - 1)

    monkeypatch.setattr(os, "write", traced_write)
    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "replace", traced_replace)
    runs.build_inline(out, path, shard_tokens=8000)
    assert sorted(named_at) == sorted(runs.shards_in(out))
    assert len(named_at) >= 3
    for shard, manifest in named_at.items():
        given = trace.index(("name", shard))
        growing = growing_path(out / shard).name
        written = [place for place, step in enumerate(trace) if step == ("write", growing)]
        assert written
        assert ("sync", growing) in trace[written[-1] : given]
        assert trace[given + 1] == ("sync", "out")
        assert given + 1 < manifest
        assert trace[manifest - 1] == ("sync", "manifest.json.tmp")


@pytest.mark.promise("a shard is durable before the manifest names it")
def test_a_shard_that_the_ledger_does_not_know_is_made_again(tmp_path: Path) -> None:
    """Whatever is in it: a crash may have left anything between its name and its record."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=8000)
    expected = reference.shard_files(reference.stream(DOCUMENTS), 8000)
    for kept in range(len(expected)):
        manifest = json.loads((out / "manifest.json").read_text())
        unknown = manifest["shards"][kept]["name"]
        manifest.update(shards=manifest["shards"][:kept], complete=False, totals={})
        runs.write_manifest(out, manifest)
        (out / unknown).write_bytes(b"half a shard, or somebody else's")
        runs.build_inline(out, path, shard_tokens=8000)
        assert runs.shards_in(out) == expected
