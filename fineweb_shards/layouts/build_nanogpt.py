"""karpathy/build-nanogpt: `edufineweb_{val|train}_{index:06d}.npy`, EOT before each document.

The bytes are those of `numpy.save`. The loader opens every file in the folder whose name contains
`train` or `val`, so nothing else there may have those letters in its name.
"""

from __future__ import annotations

import io
import re

import numpy as np

from fineweb_shards.layouts.base import Layout

# DataLoaderLite never checks the length of a new shard: with less than B*T*ranks + 1 tokens in it,
# `.view` crashes (build-nanogpt#41). The figure for its defaults, 64 x 1024 on 8 GPUs.
MINIMUM_SHARD_TOKENS = 64 * 1024 * 8 + 1


class BuildNanoGPT(Layout):
    name = "build-nanogpt"
    eot_first = True
    header_bytes = 128

    def shard_name(self, index: int) -> str:
        return f"edufineweb_{'train' if index else 'val'}_{index:06d}.npy"

    def owns(self, name: str) -> bool:
        return re.fullmatch(r"edufineweb_(val|train)_\d{6,}\.npy", name) is not None

    def header(self, tokens: int) -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
        )
        header = buffer.getvalue()
        assert len(header) == self.header_bytes
        return header

    def loader_lines(self, folder: str) -> list[str]:
        return [
            "import numpy as np",
            f'tokens = np.load("{folder}/{self.shard_name(0)}", mmap_mode="r")  # uint16',
            f'# build-nanogpt: set data_root = "{folder}" in train_gpt2.py',
        ]
