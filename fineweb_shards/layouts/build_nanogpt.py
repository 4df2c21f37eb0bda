"""Describe karpathy/build-nanogpt: `edufineweb_{val|train}_{index:06d}.npy`, EOT before each document.

The files are those of `numpy.save`. The loader opens every file in the folder whose name contains `train` or `val`, so
no other file may have such a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fineweb_shards.layouts.base import Layout, quote_string
from fineweb_shards.layouts.sidecar import NPY_HEADER_BYTES, npy_header
from fineweb_shards.types import SPLITS, Dtype, Split
from fineweb_shards.vocabulary import Vocabulary

# train_gpt2.py: B, T = 64, 1024; llm.c's run_gpt2_124M.sh: -b 64 -t 1024.
BATCH_ROWS, BATCH_LENGTH = 64, 1024
BATCH_REMEDY = (
    "Keep its B x T x GPUs below {tokens:,}; or choose --shard-tokens and --val-tokens of {needed} or more, and "
    "--last-shard drop; or take more input."
)


class BuildNanoGPT(Layout):
    """The default layout."""

    name = "build-nanogpt"
    eot_first = True
    suffix = ".npy"
    header_bytes = NPY_HEADER_BYTES
    file_name = "edufineweb_{split}_{number}.npy"
    pattern = r"edufineweb_(val|train)_\d{6,}\.npy"
    opened_pattern = r".*(train|val).*"  # os.listdir, filtered by `split in name`
    batch_tokens = BATCH_ROWS * BATCH_LENGTH
    # DataLoaderLite does not check the length of the next shard (build-nanogpt#41).
    short_file_failure = f"its loader would crash there (shape '[{BATCH_ROWS}, {BATCH_LENGTH}]' is invalid)"
    short_file_remedy = BATCH_REMEDY
    missing_split_errors: ClassVar[dict[Split, str]] = {split: f"no shards found for split {split}" for split in SPLITS}

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        return npy_header(tokens, dtype)

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        first = next(name for name in names if "train" in name)
        return [
            f"import numpy as np  # tokens are {self.dtype(vocabulary).name}",
            f'tokens = np.load({quote_string(f"{folder}/{first}")}, mmap_mode="r")',
            f"# build-nanogpt: set data_root = {quote_string(folder)} in train_gpt2.py",
        ]
