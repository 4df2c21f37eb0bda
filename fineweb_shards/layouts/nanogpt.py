"""Describe karpathy/nanoGPT: `train.bin` and `val.bin`, uint16 tokens without a header, EOT after documents.

Its loader uses `np.memmap`. By default 0.0005 of the documents are for validation, as in its prepare.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from fractions import Fraction
from pathlib import PurePath
from typing import ClassVar

from fineweb_shards.layouts.base import Layout, quote_string
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Split
from fineweb_shards.vocabulary import Vocabulary

BLOCK_TOKENS = 1024  # its block_size
SHORTEST_TOKENS = BLOCK_TOKENS + 1  # `torch.randint(len(data) - block_size, …)` needs at least one position


class NanoGPT(Layout):
    name = "nanogpt"
    eot_first = False
    one_file = True
    widest_bytes = 2  # np.memmap(…, dtype=np.uint16) in its train.py
    file_name = "{split}.bin"
    pattern = r"(train|val)\.bin"
    short_file_failure = "torch.randint would fail, which draws its windows"
    short_file_remedy = "Set its block_size below {tokens:,}, choose --val-tokens {needed} or more, or take more input."
    missing_split_errors: ClassVar[dict[Split, str]] = {
        split: f"No such file or directory: {split}.bin" for split in SPLITS
    }

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        return SplitRule(val_ratio=Fraction(1, 2000))

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        name = PurePath(folder).name
        # Its configurator parses a name that looks like a number as one.
        dataset = name if name[:1].isalpha() else "fineweb"
        return [
            "import numpy as np",
            f"tokens = np.memmap({quote_string(f'{folder}/train.bin')}, "
            f'dtype=np.{self.dtype(vocabulary).name}, mode="r")',
            f"# nanoGPT, with this folder as data/{dataset} in its own: "
            f"python train.py {shlex.quote(f'--dataset={dataset}')}",
        ]

    def least_tokens(self, gpus: int) -> int:
        return SHORTEST_TOKENS
