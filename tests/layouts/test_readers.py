"""The rules of every layout's own reader, applied to our files: what its code checks and how it reads."""

from __future__ import annotations

import glob
import os
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import reference
import runs
from documents import make_documents
from inputs import write_jsonl
from layout_reference import Wanted

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.modded_nanogpt import VALIDATION_TOKENS
from fineweb_shards.types import Counts, Cursor, ShardRecord

DOCUMENTS = make_documents(80, seed=93)
ENCODED = [reference.encode(text) for text in DOCUMENTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    for layout in LAYOUTS:
        runs.build_inline(folder / layout, path, **Wanted(layout, 4000, val_ratio=Fraction(1, 8)).settings())
    return folder


@pytest.mark.parametrize(("layout", "stem"), [("llm.c", "edu_fineweb"), ("modded-nanogpt", "fineweb")])
def test_llm_c_opens_every_shard(made: Path, layout: str, stem: str) -> None:
    """dataloader.h: magic, version, the exact length of the file, seeks of 32 bits, no shard without a
    batch; modded-nanogpt's _load_data_shard besides: documents begin with EOT."""
    batch, length, ranks = 2, 16, 2
    for split in ("val", "train"):
        paths = sorted(glob.glob(str(made / layout / f"{stem}_{split}_*.bin")))
        assert paths
        for path in paths:
            header = np.fromfile(path, np.int32, 256)
            tokens = int(header[2])
            assert (header[0], header[1]) == (20240520, 1)
            assert not header[3:].any()
            assert os.path.getsize(path) == 256 * 4 + tokens * 2 < 2**31
            assert tokens >= ranks * batch * length + 1
            read = np.fromfile(path, np.uint16, offset=1024)
            assert len(read) == tokens
        assert np.fromfile(paths[0], np.uint16, offset=1024)[0] == 50256


def test_modded_nanogpt_minimums_are_told() -> None:
    """Two training shards and enough validation tokens, or a warning with the next step."""

    def record(side: str, name: str, tokens: int) -> ShardRecord:
        return ShardRecord(name, side, 0, tokens, 1, 2 * tokens, "", Cursor(0, 0), Counts())  # type: ignore[arg-type]

    layout = LAYOUTS["modded-nanogpt"]
    few = [record("val", "v", VALIDATION_TOKENS), record("train", "a", 10**8)]
    first, second = layout.warnings(few, 10**8)
    assert "--val-tokens" in first
    assert "--shard-tokens" in second
    enough = [record("val", "v", 10**8), record("train", "a", 10**8), record("train", "b", 10**8)]
    assert layout.warnings(enough, 10**8) == []


def test_nanogpt_maps_its_files(made: Path) -> None:
    """get_batch: np.memmap of uint16, any window; EOT ends each document."""
    for split in ("train", "val"):
        data = np.memmap(made / "nanogpt" / f"{split}.bin", dtype=np.uint16, mode="r")
        assert data[-1] == 50256
        for start in np.random.default_rng(1).integers(len(data) - 65, size=20):
            x = data[start : start + 64].astype(np.int64)
            y = data[start + 1 : start + 65].astype(np.int64)
            assert np.array_equal(x[1:], y[:-1])


def test_plain_shards_joined_are_a_nanogpt_file(made: Path) -> None:
    """`cat train_shard_*.bin > train.bin`."""
    joined = b"".join(path.read_bytes() for path in sorted((made / "plain").glob("train_shard_*.bin")))
    assert joined == (made / "nanogpt" / "train.bin").read_bytes()


def test_megatron_finds_every_document(made: Path) -> None:
    """_IndexReader's arithmetic: header, then views of lengths, pointers and document numbers one behind
    the other; each document by pointer and length is tiktoken's, with EOD behind it."""
    found = []
    for split in ("train", "val"):
        prefix = made / "megatron" / f"fineweb_{split}_text_document"
        data = prefix.with_suffix(".idx").read_bytes()
        assert data[:9] == b"MMIDIDX\x00\x00"
        version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
        assert (version, code, documents) == (1, 8, sequences + 1)
        offset = 34
        lengths = np.frombuffer(data, np.int32, sequences, offset)
        pointers = np.frombuffer(data, np.int64, sequences, offset + lengths.nbytes)
        numbers = np.frombuffer(data, np.int64, documents, offset + lengths.nbytes + pointers.nbytes)
        assert len(data) == offset + lengths.nbytes + pointers.nbytes + numbers.nbytes == 42 + 20 * sequences
        assert lengths.shape[0] == numbers[-1]
        tokens = np.memmap(prefix.with_suffix(".bin"), np.uint16, "r")
        assert lengths.sum() == len(tokens)
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True):
            document = np.frombuffer(tokens, np.uint16, length, pointer)
            assert document[-1] == 50256
            found.append(document[:-1].tolist())
    assert sorted(found) == sorted(ENCODED)
