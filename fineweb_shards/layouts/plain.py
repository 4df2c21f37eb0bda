"""Describe plain shards: `train_shard_{index:04d}.bin`, tokens without a header, EOT after each document.

`cat train_shard_*.bin > train.bin` makes a file for nanoGPT.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fineweb_shards.layouts.base import Layout, quote_string
from fineweb_shards.vocabulary import Vocabulary


class Plain(Layout):
    """Numbered shards of tokens without a header, for readers of one's own."""

    name = "plain"
    eot_first = False
    digits = 4
    file_name = "{split}_shard_{number}.bin"
    validates_first_shard = False
    pattern = r"(train|val)_shard_\d{4,}\.bin"
    opened_pattern = r"(train|val)_shard_.*\.bin"

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        return [
            "import numpy as np",
            f"tokens = np.memmap({quote_string(f'{folder}/{names[0]}')}, "
            f'dtype="{self.dtype(vocabulary).str}", mode="r")',
            f"# as one file: cat {shlex.quote(folder)}/train_shard_*.bin > train.bin",
        ]
