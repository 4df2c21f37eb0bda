"""karpathy/nanoGPT: `train.bin` and `val.bin`, nothing but uint16 tokens, EOT after each document.

Its loader is `np.memmap`. A share of the documents is for validation: 0.0005, as in its prepare.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from fineweb_shards.layouts.base import Layout
from fineweb_shards.split import Side, Split
from fineweb_shards.types import ShardRecord

DEFAULT_RATIO = Fraction(1, 2000)


class NanoGPT(Layout):
    name = "nanogpt"
    eot_first = False
    one_file = True
    pattern = r"(train|val)\.bin"

    def shard_name(self, side: Side, index: int, digits: int = 0) -> str:
        return f"{side}.bin"

    def default_split(self, shard_tokens: int) -> Split:
        return Split(val_ratio=DEFAULT_RATIO)

    def loader_lines(self, folder: str, names: Sequence[str]) -> list[str]:
        return [
            "import numpy as np",
            f'tokens = np.memmap("{folder}/train.bin", dtype=np.uint16, mode="r")',
            f"# nanoGPT: put the folder below data/ and set dataset to its name ({folder})",
        ]

    def warnings(self, shards: Sequence[ShardRecord], shard_tokens: int) -> list[str]:
        missing = {"train", "val"} - {shard.split for shard in shards}
        return [
            f"There is no {side}.bin: the input is too small for this split. Choose a larger --val-ratio, "
            "or --val-tokens."
            for side in sorted(missing)
            if shards
        ]
