"""The shard writer: numpy's bytes, durable before anybody hears of them, nothing left on failure."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from doubles import FailingCall

from fineweb_shards.errors import DiskFullError, OutputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts.build_nanogpt import BuildNanoGPT
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store import writer as writer_module
from fineweb_shards.store.writer import ShardWriter
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.types import Cursor
from fineweb_shards.vocabulary import GPT2

LAYOUT = BuildNanoGPT()
FORMAT = ShardFormat(LAYOUT, GPT2)
TOKENS = np.array([50256, 1, 2, 50256, 3, 65535], np.uint16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK_FOLDER).mkdir()
    return tmp_path


def numpy_bytes(tokens: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, tokens)
    return buffer.getvalue()


@pytest.mark.parametrize("shard_tokens", [6, 100])
def test_full_and_short_shards_are_what_numpy_saves(folder: Path, shard_tokens: int) -> None:
    """Byte for byte, with the record to match."""
    with ShardWriter(folder, FORMAT, "val", 0, shard_tokens, Disk(folder, 0, Observer())) as writer:
        writer.write(TOKENS[:2], 1)
        writer.write(TOKENS[2:], 1)
        record = writer.commit(Cursor(1, 2, 3))
    data = (folder / "edufineweb_val_000000.npy").read_bytes()
    assert data == numpy_bytes(TOKENS)
    assert record.sha256 == hashlib.sha256(data).hexdigest()
    assert (record.tokens, record.documents, record.bytes) == (6, 2, len(data))
    assert list((folder / WORK_FOLDER).iterdir()) == []


def test_without_commit_nothing_is_left(folder: Path) -> None:
    """A shard given up in the middle leaves neither a file nor a temporary one."""
    with ShardWriter(folder, FORMAT, "val", 0, 6, Disk(folder, 0, Observer())) as writer:
        writer.write(TOKENS, 2)
    assert [path.name for path in folder.rglob("*")] == [WORK_FOLDER]


def test_the_shard_is_synced_then_named_then_the_folder_synced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of promise 3."""
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    with ShardWriter(folder, FORMAT, "val", 0, 6, Disk(folder, 0, Observer())) as writer:
        writer.write(TOKENS, 2)
        assert calls == []
        writer.commit(Cursor(0, 0))
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.promise(15)
def test_an_fsync_error_in_the_background_is_fatal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised at the next write or at the commit, never retried."""
    monkeypatch.setattr(writer_module, "_SYNC_EVERY_BYTES", 4)
    failing = FailingCall(os.fsync, failing=1)
    monkeypatch.setattr(os, "fsync", failing)
    with ShardWriter(folder, FORMAT, "val", 0, 6, Disk(folder, 0, Observer())) as writer:
        writer.write(TOKENS, 2)
        with pytest.raises(OutputError, match="Input/output error"):
            writer.commit(Cursor(0, 0))
    assert failing.calls == 1
    assert not (folder / "edufineweb_val_000000.npy").exists()


def test_a_full_disk_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the final fsync, too."""
    monkeypatch.setattr(os, "fsync", FailingCall(os.fsync, failing=1, code=errno.ENOSPC))
    with ShardWriter(folder, FORMAT, "val", 0, 6, Disk(folder, 0, Observer())) as writer:
        writer.write(TOKENS, 2)
        with pytest.raises(DiskFullError):
            writer.commit(Cursor(0, 0))


@pytest.mark.parametrize("tokens", [0, 1, 777_777, 100_000_000, 10**12])
def test_the_header_is_numpys(tokens: int) -> None:
    """128 bytes, version 1.0, exactly as numpy writes them."""
    expected = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        expected, {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
    )
    assert FORMAT.header(tokens) == expected.getvalue()
    if tokens < 10**6:
        assert FORMAT.header(tokens) == numpy_bytes(np.zeros(tokens, np.uint16))[:128]


def test_names_of_shards() -> None:
    """Shard 0 is for validation, all others for training."""
    assert LAYOUT.shard_name("val", 0) == "edufineweb_val_000000.npy"
    assert LAYOUT.shard_name("train", 12) == "edufineweb_train_000012.npy"
    assert LAYOUT.owns("edufineweb_train_000012.npy")
    assert not LAYOUT.owns("my_train_notes.txt")
