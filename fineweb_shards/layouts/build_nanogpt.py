"""Describe karpathy/build-nanogpt: `edufineweb_{val|train}_{index:06d}.npy`, EOT before each document.

The bytes are those of `numpy.save`. The loader opens every file in the folder whose name contains `train` or `val`, so
no other file there may have such a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fineweb_shards.layouts.base import Layout, SizedFile, quote_string
from fineweb_shards.layouts.sidecar import NPY_HEADER_BYTES, npy_header
from fineweb_shards.types import SPLITS, Dtype, Split
from fineweb_shards.units import show_number_of
from fineweb_shards.vocabulary import Vocabulary

# train_gpt2.py: B, T = 64, 1024; llm.c's run_gpt2_124M.sh: -b 64 -t 1024.
BATCH_ROWS, BATCH_LENGTH = 64, 1024


class BuildNanoGPT(Layout):
    """The layout of build-nanogpt, and the default."""

    name = "build-nanogpt"
    eot_first = True
    suffix = ".npy"
    header_bytes = NPY_HEADER_BYTES
    file_name = "edufineweb_{split}_{number}.npy"
    pattern = r"edufineweb_(val|train)_\d{6,}\.npy"
    opened_pattern = r".*(train|val).*"  # os.listdir, filtered by `split in name`
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

    def warnings(self, files: Sequence[SizedFile], gpus: int = 1) -> list[str]:
        # DataLoaderLite does not check the length of the next shard (build-nanogpt#41).
        crash = f"its loader would crash there (shape '[{BATCH_ROWS}, {BATCH_LENGTH}]' is invalid)"
        return short_shard_warnings(files, gpus, self.name, crash)


def short_shard_warnings(files: Sequence[SizedFile], gpus: int, reader: str, failure: str) -> list[str]:
    """Return a warning if shards, of either split, are shorter than one batch of the reader on all GPUs."""
    needed = gpus * BATCH_ROWS * BATCH_LENGTH + 1
    short = [file for file in files if file.tokens < needed]
    if not short:
        return []
    shortest = min(short, key=lambda file: file.tokens)
    if len(files) == 1 or sum(file.tokens for file in files) < 2 * needed:
        remedy = "take more input"  # no shard size would help
    elif len(short) == len(files):
        remedy = f"give it --shard-tokens {needed} or more"
    elif [file.split for file in short] == ["train"]:
        remedy = "leave it out with --last-shard drop"
    else:
        remedy = f"give validation --val-tokens {needed} or more"
    which = f"{len(short):,} of {show_number_of(len(files), 'shard')}" if len(files) > 1 else "The only shard"
    have = "has" if len(short) == 1 else "have"
    return [
        f"{which} {have} fewer than the {needed:,} tokens that {reader} needs for {BATCH_ROWS} x "
        f"{BATCH_LENGTH:,} on {show_number_of(gpus, 'GPU')} ({shortest.name}: {shortest.tokens:,}); "
        f"{failure}. Keep its B x T x GPUs below {shortest.tokens:,}, or {remedy}."
    ]
