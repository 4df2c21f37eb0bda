"""Describe karpathy/llm.c: `edu_fineweb_{val|train}_{index:06d}.bin`, EOT before each document.

The header is 256 int32. The loader checks its magic, version and the exact length of the file, and seeks with 32-bit
offsets. Tokens of 4 bytes have another magic and version; only llm.c's train_llama3.py reads them.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.build_nanogpt import BATCH_LENGTH, BATCH_REMEDY, BATCH_ROWS
from fineweb_shards.types import SPLITS, Dtype, Split
from fineweb_shards.vocabulary import Vocabulary

HEADERS = {2: (20240520, 1), 4: (20240801, 7)}  # magic and version, by the width of a token in bytes
HEADER_INTS = 256


class LlmC(Layout):
    name = "llm.c"
    eot_first = True
    header_bytes = 4 * HEADER_INTS
    largest_bytes = 2**31 - 1
    file_name = "edu_fineweb_{split}_{number}.bin"
    pattern = r"edu_fineweb_(val|train)_\d{6,}\.bin"
    opened_pattern = r"edu_fineweb_(val|train)_.*\.bin"  # what `loader_lines` tells the reader to open
    batch_tokens = BATCH_ROWS * BATCH_LENGTH
    # It checks all shards of both splits before training.
    short_file_failure = "it would abort (Assertion `shard_ntok >= (int64_t) (num_processes * B * T + 1)' failed)"
    short_file_remedy = BATCH_REMEDY
    missing_split_errors: ClassVar[dict[Split, str]] = dict.fromkeys(SPLITS, "Error: failed to glob pattern")

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        return int_header(*HEADERS[dtype.itemsize], tokens)

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        stem = f"{glob.escape(folder)}/{names[0].rsplit('_', 2)[0]}"
        train, val = shlex.quote(f"{stem}_train_*.bin"), shlex.quote(f"{stem}_val_*.bin")
        if self.dtype(vocabulary).itemsize > 2:
            return [f"python train_llama3.py --input_bin {train} --input_val_bin {val}"]
        return [f"./train_gpt2cu -i {train} -j {val}"]


def int_header(*values: int) -> bytes:
    """Return a header of 256 int32 that begins with these values."""
    header = np.zeros(HEADER_INTS, "<i4")
    header[: len(values)] = values
    return header.tobytes()
