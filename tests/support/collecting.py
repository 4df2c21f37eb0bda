"""Tokens that stay with their workers, fetched as a run fetches them: by having each block written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fineweb_shards.executors.base import Executor
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement


def with_tokens(executor: Executor, blocks: Iterable[EncodedBlock], folder: Path) -> Iterator[EncodedBlock]:
    """Each block as soon as its worker has written it to a file of its own."""
    for number, block in enumerate(blocks):
        if isinstance(block.tokens, HeldTokens):
            path = folder / str(number)
            path.touch()
            ranges = np.array([[0, len(block.tokens)]])
            for written in executor.place(block.tokens, [Placement(str(path), np.array([0]), ranges)]):
                executor.wait(written)
            block = replace(block, tokens=np.fromfile(path, np.uint16))  # noqa: PLW2901, RUF100
            path.unlink()
        yield block


def encode(executor: Executor, batches: Iterator[Batch]) -> Iterator[EncodedBlock]:
    """All blocks of the batches, with their tokens."""
    with tempfile.TemporaryDirectory() as folder:
        yield from with_tokens(executor, executor.encode([batches]), Path(folder))


def placed(executor: Executor, blocks: Iterable[EncodedBlock], path: Path) -> Iterator[EncodedBlock]:
    """Each block, while its worker writes it behind the others into one file; at the end all are written."""
    offset, writes = 0, []
    path.touch()
    for block in blocks:
        size = len(block.tokens)
        placement = Placement(str(path), np.array([offset]), np.array([[0, size]]))
        writes += executor.place(block.tokens, [placement] if size else [])
        offset += 2 * size
        yield block
    for written in writes:
        executor.wait(written)
