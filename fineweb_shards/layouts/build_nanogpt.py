"""karpathy/build-nanogpt: `edufineweb_{val|train}_{index:06d}.npy`, EOT before each document.

The bytes are those of `numpy.save`. The loader opens every file in the folder whose name contains
`train` or `val`, so nothing else there may have those letters in its name.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.split import Side
from fineweb_shards.types import ShardRecord

# DataLoaderLite never checks the length of a new shard: with less than B*T*ranks + 1 tokens in it,
# `.view` crashes (build-nanogpt#41). The figure for its defaults, 64 x 1024 on 8 GPUs.
MINIMUM_SHARD_TOKENS = 64 * 1024 * 8 + 1


class BuildNanoGPT(Layout):
    name = "build-nanogpt"
    eot_first = True
    header_bytes = 128
    pattern = r"edufineweb_(val|train)_\d{6,}\.npy"

    def shard_name(self, side: Side, index: int, digits: int = 0) -> str:
        return f"edufineweb_{side}_{index:0{max(digits, self.digits)}d}.npy"

    def header(self, tokens: int) -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
        )
        header = buffer.getvalue()
        assert len(header) == self.header_bytes
        return header

    def loader_lines(self, folder: str, names: Sequence[str]) -> list[str]:
        return [
            "import numpy as np",
            f'tokens = np.load("{folder}/{names[0]}", mmap_mode="r")  # uint16',
            f'# build-nanogpt: set data_root = "{folder}" in train_gpt2.py',
        ]

    def warnings(self, shards: Sequence[ShardRecord], shard_tokens: int) -> list[str]:
        return short_shard_warnings(shards, shard_tokens, "build-nanogpt's loader")


def short_shard_warnings(shards: Sequence[ShardRecord], shard_tokens: int, reader: str) -> list[str]:
    """A short last shard that is shorter than a batch of the reader on 8 GPUs."""
    if len(shards) < 2 or shards[-1].tokens >= min(shard_tokens, MINIMUM_SHARD_TOKENS):
        return []
    return [
        f"The last shard is shorter than the {MINIMUM_SHARD_TOKENS:,} tokens that {reader} needs at its "
        "default batch on 8 GPUs: with a large batch, leave it out (--last-shard drop)."
    ]
