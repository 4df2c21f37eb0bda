"""A full or failing disk: a clear sentence, everything finished kept, and the same bytes afterwards."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import DiskFullError, OutputError
from fineweb_shards.formats import piles as pile_format
from fineweb_shards.output import sidecars
from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.reading import verify
from fineweb_shards.run import shuffle
from fineweb_shards.run.plan import make_plan
from fineweb_shards.run.resources import check_needs
from fineweb_shards.units import show_bytes
from fineweb_shards.writing import piles, placement
from tests.support import inline, layout_reference, reference, runs, shuffle_reference
from tests.support.documents import make_documents
from tests.support.doubles import FailingCall
from tests.support.inputs import write_parquet
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(40, seed=41)


class FullDisk:
    """A disk that is full after so many writes: of tokens, headers and indexes."""

    def __init__(self, patch: pytest.MonkeyPatch, writes_left: int) -> None:
        self._left = writes_left
        self._write = os.write
        patch.setattr(os, "write", self.write)
        patch.setattr(Path, "write_bytes", self.wrap(Path.write_bytes))
        for module in (placement, sidecars):
            patch.setattr(module, "open", self.open, raising=False)

    def use(self) -> None:
        """One more write."""
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= 1

    def wrap(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.use()
            return real(*arguments)

        return call

    def write(self, file: int, data: memoryview) -> int:
        """Writes get shorter before they fail, as on a real disk."""
        self.use()
        return self._write(file, data if self._left else data[: len(data) // 2 + 1])

    def open(self, path: Path, mode: str, **more: Any) -> Any:
        if mode == "rb":
            return builtins.open(path, mode)
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.use()
                return super().write(data)

        return File(path, mode.replace("b", ""))


def build_now(out: Path, path: Path) -> Manifest:
    """A build that does not wait for space."""
    return runs.build_inline(out, path, shard_tokens=2000, batch_bytes=2048, max_outage=0)


@pytest.mark.promise("a full disk loses nothing")
def test_a_disk_that_is_full_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it fills up, finished shards stay, and the next run with space completes."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    expected = reference.shard_files(reference.stream(DOCUMENTS), 2000)
    out = tmp_path / "out"
    failures = 0
    for writes in range(0, 40, 3):
        with monkeypatch.context() as patch:
            FullDisk(patch, writes)
            enough = False
            with contextlib.suppress(DiskFullError):
                enough = build_now(out, path).complete
            failures += not enough
        assert runs.shards_in(out).items() <= expected.items()
        assert not list((out / ".fineweb-shards").glob("*.npy.tmp"))
    assert failures > 3
    runs.build_inline(out, path, shard_tokens=2000)
    assert runs.shards_in(out) == expected


@pytest.mark.promise("a full disk loses nothing")
@pytest.mark.parametrize("layout", ["nanogpt", "llm.c", "megatron", "datatrove"])
def test_a_full_disk_while_files_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Two splits side by side: each try keeps what the manifest names and goes on from there."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    wanted = Wanted(layout, 2000, val_ratio=Fraction(1, 4))
    expected = layout_reference.files(DOCUMENTS, wanted)
    out = tmp_path / "out"
    records = [0]
    for writes in range(0, 40, 3):
        with monkeypatch.context() as patch:
            FullDisk(patch, writes)
            with contextlib.suppress(DiskFullError):
                runs.build_inline(out, path, batch_bytes=2048, max_outage=0, **wanted.settings())
        records.append(len(json.loads((out / "manifest.json").read_text())["shards"]))
        assert runs.outputs_in(out).items() <= expected.items()
    assert records == sorted(records)
    assert len(set(records)) > 3
    runs.build_inline(out, path, **wanted.settings())
    assert runs.outputs_in(out) == expected


@pytest.mark.promise("a full disk loses nothing")
@pytest.mark.parametrize("command", ["build", "export"])
def test_a_full_disk_in_either_pass_of_a_shuffle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """What is recorded of either pass stays, and with space the same command completes."""
    monkeypatch.setattr(verify, "BLOCK_TOKENS", 777)
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 4)
    monkeypatch.setattr(piles, "_TOKENS_PER_PILE", 1)
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(DOCUMENTS, 3)), 2000)
    out, settings = tmp_path / "out", {"shuffle": 3, "shard_tokens": 2000, "batch_bytes": 2048}
    run, states = partial(runs.build_inline, out, path), []
    if command == "export":
        runs.build_inline(tmp_path / "built", path)
        run = partial(runs.export_mix, out, [tmp_path / "built"], [{}])
    for writes in range(0, 120, 7):
        with monkeypatch.context() as patch:
            FullDisk(patch, writes)
            with contextlib.suppress(DiskFullError):
                run(max_outage=0, **settings)
        manifest = load_manifest(out)
        assert manifest is not None
        states.append((sum(manifest.piles.tokens) if manifest.piles else 0, manifest.tokens))
        assert runs.shards_in(out).items() <= expected.items()
    assert states == sorted(states)
    assert len({piled for piled, _ in states}) > 3
    assert len({tokens for _, tokens in states}) >= 3  # none, some and all of the shards
    run(**settings)
    assert runs.shards_in(out) == expected


@pytest.mark.promise("an fsync error is fatal")
def test_an_fsync_error_in_either_pass_of_a_shuffle_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pile, of the list, of a shard; a new run makes it good."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 2)
    monkeypatch.setattr(piles, "_TOKENS_PER_PILE", 1)
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(DOCUMENTS, 3)), 2000)
    ends = []
    for failing in range(1, 80, 5):
        out, settings = tmp_path / str(failing), {"shuffle": 3, "shard_tokens": 2000, "batch_bytes": 2048}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", FailingCall(os.fsync, failing))
            with pytest.raises(OutputError):
                runs.build_inline(out, path, **settings)
        manifest = load_manifest(out)
        ends.append(manifest is not None and manifest.piles is not None and manifest.piles.ended)
        runs.build_inline(out, path, **settings)
        assert runs.shards_in(out) == expected
    assert {True, False} == set(ends)


@pytest.mark.parametrize("unreadable", ["0002", "documents"])
def test_a_pile_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str) -> None:
    """In every run, with what helps: without the file the first pass is repeated."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 2)
    path, out = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10), tmp_path / "out"
    pile = out / ".fineweb-shards/piles" / unreadable
    words = ["build", "--input", path, "--out", out, "--shuffle", 3, "--shard-tokens", 2000]
    opened, second_pass = pile_format.open_own, shuffle.second_pass

    class Unreadable(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open_own(path: Path, mode: Any, **more: Any) -> Any:
        return io.BufferedReader(Unreadable(path)) if path == pile and mode == "rb" else opened(path, mode, **more)

    def break_disk(*arguments: Any) -> Any:
        patch.setattr(pile_format, "open_own", open_own)
        return second_pass(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("fineweb_shards.run.shuffle.second_pass", break_disk)
        for _ in range(2):
            done = inline.run_command(*words)
            assert done.returncode == 5, done.stderr
            assert f"{pile}: Input/output error." in done.stderr
            assert "remove this file: then the first pass is repeated" in done.stderr
    pile.unlink()
    assert inline.run_command(*words).returncode == 0
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(DOCUMENTS, 3)), 2000)
    assert runs.shards_in(out) == expected


@pytest.mark.promise("an fsync error is fatal")
def test_a_pile_that_is_not_durable_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was for lack of space: what the kernel has dropped then would never be missed by a second fsync."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 2)
    monkeypatch.setattr(piles, "_TOKENS_PER_PILE", 1)
    path, out = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10), tmp_path / "out"
    settings, pile = {"shuffle": 3, "shard_tokens": 2000, "batch_bytes": 2048}, out / ".fineweb-shards/piles/0002"
    failures, fsync = [], os.fsync

    def drop(file: int) -> None:
        manifest = load_manifest(out)
        recorded = manifest.piles.tokens[2] if manifest and manifest.piles else 0
        if recorded and not failures and os.path.samestat(os.fstat(file), pile.stat()):
            failures.append(pile.stat().st_size)
            os.truncate(pile, 2 * recorded)
            os.truncate(pile, failures[0])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", drop)
    with pytest.raises(DiskFullError, match="0002: no space left on the disk"):
        runs.build_inline(out, path, **settings)
    runs.build_inline(out, path, **settings)
    assert failures
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(DOCUMENTS, 3)), 2000)
    assert runs.shards_in(out) == expected


@pytest.mark.promise("an fsync error is fatal")
@pytest.mark.parametrize("failing", range(1, 12))
def test_an_fsync_error_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Never retried as if nothing had happened; a new run makes it good."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        double = FailingCall(os.fsync, failing)
        patch.setattr(os, "fsync", double)
        with pytest.raises(OutputError, match="Input/output error"):
            runs.build_inline(out, path, shard_tokens=2000)
        assert double.calls == failing
    runs.build_inline(out, path, shard_tokens=2000)
    assert runs.shards_in(out) == reference.shard_files(reference.stream(DOCUMENTS), 2000)


@pytest.mark.promise("no start when the disk can't hold the result")
def test_what_the_disk_cannot_hold_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says how much is missing."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    monkeypatch.setattr("fineweb_shards.run.resources.free_disk_bytes", lambda folder: 1000)
    plan = make_plan(runs.job_of(tmp_path / "out", path), trial_seconds=0)
    assert plan.extent.tokens is not None
    missing = show_bytes(2 * plan.extent.tokens - 1000)
    with pytest.raises(DiskFullError, match=rf"\(an estimate\), 1\.0 kB are free: about {missing} are missing"):
        check_needs(plan.disk_needs, plan.job.output, exact=False)
    check_needs(replace(plan, done_tokens=plan.extent.tokens or 0).disk_needs, plan.job.output, exact=False)
