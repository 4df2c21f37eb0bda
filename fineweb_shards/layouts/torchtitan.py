"""Describe pytorch/torchtitan: `tokens.bin`, always uint32, and `document_offsets.npy` beside it.

These are the files of `PretokenizedMemmapSource` in its components/data/README.md, which has one file of each. So the
files for validation, by default none, have the prefix `val_`. EOT comes after documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fineweb_shards.layouts.base import Layout, quote_string
from fineweb_shards.layouts.sidecar import NPY_HEADER_BYTES, FileFacts, Sidecar, document_ends, npy_header
from fineweb_shards.types import Dtype, Positions, Split
from fineweb_shards.vocabulary import Vocabulary, unsigned_dtype

_TOKENS, _OFFSETS = "tokens.bin", "document_offsets.npy"
_OFFSET = np.dtype("<i8")


class DocumentOffsets(Sidecar):
    """The `document_offsets.npy`: 0, then where each document ends, in tokens, as int64."""

    endings = _TOKENS, _OFFSETS

    def size_bytes(self, file: FileFacts) -> int:
        return NPY_HEADER_BYTES + _OFFSET.itemsize * (file.ends + 1)

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        yield npy_header(file.ends + 1, _OFFSET) + np.zeros(1, _OFFSET).tobytes()
        yield from (ends.astype(_OFFSET).tobytes() for ends in document_ends(file, eots))


class Torchtitan(Layout):
    name = "torchtitan"
    eot_first = False
    one_file = True
    sidecars = (DocumentOffsets(),)
    validates_first_shard = False
    pattern = r"(val_)?(tokens\.bin|document_offsets\.npy)"
    bare_dtype = unsigned_dtype(4)  # np.memmap(…, dtype=np.uint32)

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return _TOKENS if split == "train" else f"{split}_{_TOKENS}"

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        return self.bare_dtype

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        return [
            "PretokenizedMemmapSource.Config(  # torchtitan/components/data/README.md",
            f"    tokens_path={quote_string(f'{folder}/{_TOKENS}')},",
            f"    document_offsets_path={quote_string(f'{folder}/{_OFFSETS}')})",
        ]
