"""build-nanogpt's loader reads our folder, also while it is being filled."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import reference
import runs
from documents import make_documents
from inputs import write_parquet, write_text


class DataLoaderLite:
    """What build-nanogpt's DataLoaderLite does, with numpy in place of torch."""

    def __init__(self, folder: Path, batch: int, length: int, rank: int, ranks: int, split: str) -> None:
        self.batch, self.length, self.rank, self.ranks = batch, length, rank, ranks
        self.shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if split in name)
        assert self.shards, f"no shards found for split {split}"
        self.open(0)

    def open(self, number: int) -> None:
        self.current = number
        self.tokens = np.load(self.shards[number]).astype(np.int32)
        self.position = self.batch * self.length * self.rank

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        size = self.batch * self.length
        buffer = self.tokens[self.position : self.position + size + 1]
        inputs = buffer[:-1].reshape(self.batch, self.length)
        targets = buffer[1:].reshape(self.batch, self.length)
        self.position += size * self.ranks
        if self.position + (size * self.ranks + 1) > len(self.tokens):
            self.open((self.current + 1) % len(self.shards))
        return inputs, targets


def test_all_ranks_read_all_shards_in_order(tmp_path: Path) -> None:
    """Every batch of every rank is the stretch of the reference stream that it should be."""
    documents = make_documents(300, seed=81)
    whole = reference.stream(documents)
    batch, length, ranks = 4, 32, 3
    size = batch * length
    # A length at which all ranks turn to the next shard after the same step, as at 100M tokens.
    shard_tokens = 10 * size * ranks + 300
    whole = whole[: len(whole) // shard_tokens * shard_tokens]
    path = write_parquet(tmp_path / "a.parquet", documents)
    runs.build_inline(tmp_path / "out", path, shard_tokens=shard_tokens, max_tokens=len(whole))
    parts = np.split(whole, len(whole) // shard_tokens)
    for split, shards in (("val", parts[:1]), ("train", parts[1:])):
        loaders = [
            DataLoaderLite(tmp_path / "out", batch, length, rank, ranks, split) for rank in range(ranks)
        ]
        assert len(loaders[0].shards) == len(shards)
        for shard in shards:
            for step in range(10):
                for rank, loader in enumerate(loaders):
                    begin = size * (step * ranks + rank)
                    inputs, targets = loader.next_batch()
                    assert np.array_equal(inputs.ravel(), shard[begin : begin + size])
                    assert np.array_equal(targets.ravel(), shard[begin + 1 : begin + size + 1])


@pytest.mark.promise(4)
def test_a_reader_never_sees_half_a_shard(tmp_path: Path) -> None:
    """All through a run, whatever the listing shows can be loaded and is final."""
    documents = [text for text in make_documents(5000, seed=82) if text and "<|endoftext|>" not in text]
    path = write_text(tmp_path / "a.txt", documents)
    whole = reference.stream(documents)
    out = tmp_path / "out"
    words = runs.command(
        "build", "--input", path, "--out", out, "--shard-tokens", "20k", "--batch-bytes", "8k"
    )
    seen: set[str] = set()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.01)
            for name in os.listdir(out) if out.exists() else []:
                if "train" in name or "val" in name:
                    index = int(name[-10:-4])
                    tokens = np.load(out / name)
                    assert np.array_equal(tokens, whole[index * 20_000 :][:20_000])
                    seen.add(name)
        assert process.returncode == 0
    assert len(seen) > 1
    assert sorted(runs.shards_in(out)) == sorted(reference.shard_files(whole, 20_000))
