"""Describe `--index`: for any layout, the token offset of each document that starts in a file.

The index of `train_00000.ds` is `index/train_00000.npy`, a NumPy array of int64. It has a folder of its own
because some readers open whatever in theirs has `train` or `val` in its name. A document that began in an
earlier file has no start in this one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import numpy as np

from fineweb_shards.layouts.base import NPY_HEADER_BYTES, Layout, npy_header
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar, SidecarPart, in_sequence
from fineweb_shards.types import Positions

INDEX_FOLDER = "index"
_OFFSETS = np.dtype("<i8")


class DocumentIndex(Sidecar):
    """Where documents start."""

    def name_for(self, shard_name: str) -> str:
        return f"{INDEX_FOLDER}/{PurePath(shard_name).stem}.npy"

    def size_bytes(self, file: FileFacts) -> int:
        return NPY_HEADER_BYTES + _OFFSETS.itemsize * _count_starts(file)

    def parts(self, file: FileFacts, eots: Iterable[Positions]) -> Iterator[SidecarPart]:
        header = npy_header(_count_starts(file), _OFFSETS)
        starts = (starts.astype(_OFFSETS).tobytes() for starts in _document_starts(file, eots))
        return in_sequence(itertools.chain([header], starts))


def sidecars_of(layout: Layout, *, index: bool) -> tuple[Sidecar, ...]:
    """Return the sidecars of each file: those of the layout, and the index if it was asked for."""
    return (*layout.sidecars, DocumentIndex()) if index else layout.sidecars


def is_index_of(layout: Layout, name: str) -> bool:
    """Return whether a name in the output folder is that of an index of the layout's files."""
    path = PurePath(name)
    shard_name = path.stem + layout.suffix
    return path.parent.name == INDEX_FOLDER and path.suffix == ".npy" and layout.owns(shard_name)


def _count_starts(file: FileFacts) -> int:
    return file.eots if file.eot_first else file.follows_eot + file.eots - file.ends_with_eot


def _document_starts(file: FileFacts, eots: Iterable[Positions]) -> Iterator[Positions]:
    """Yield the positions at which documents start; the EOT before a document belongs to it."""
    if file.eot_first:
        yield from eots
        return
    if file.follows_eot:
        yield np.zeros(1, np.int64)
    for places in eots:
        starts = places + 1
        yield starts[starts < file.tokens]  # after the last EOT of a file the next file begins
