"""Describe KellerJordan/modded-nanogpt: llm.c's files, named `fineweb_{val|train}_{index:06d}.bin`.

The reader finds documents by the EOT at their start. It reads its training files only once, so they must have enough
tokens for all steps, and it needs enough validation tokens in a single file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fineweb_shards.layouts.base import SizedFile, quote_pattern
from fineweb_shards.layouts.llm_c import LlmC
from fineweb_shards.types import SPLITS, Split
from fineweb_shards.vocabulary import Vocabulary

# train_gpt.py's Hyperparameters: val_tokens = 10,485,760 in batches of val_batch_size.
_VAL_BATCH_TOKENS = 4 * 64 * 1024 * 8
_VAL_BATCHES = 5
# The tokens for the steps of train_gpt.py if no document is cut: thirds of 1,270 and 15 more (TRAINING_STAGES).
TRAIN_TOKENS = 423 * 131_072 + 424 * 262_144 + (423 + 15) * 393_216


class ModdedNanoGPT(LlmC):
    name = "modded-nanogpt"
    file_name = "fineweb_{split}_{number}.bin"
    pattern = r"fineweb_(val|train)_\d{6,}\.bin"
    opened_pattern = r"fineweb_(val|train)_.*\.bin"
    widest_bytes = 2  # its _load_data_shard accepts only llm.c's 2-byte magic and torch.uint16
    missing_split_errors: ClassVar[dict[Split, str]] = dict.fromkeys(SPLITS, "No files found for pattern")

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        return [
            f"train_files = {quote_pattern(folder, 'fineweb_train_*.bin')}  # in train_gpt.py",
            f"val_files = {quote_pattern(folder, 'fineweb_val_*.bin')}",
        ]

    def warnings(self, files: Sequence[SizedFile], gpus: int = 1) -> list[str]:
        val = [file for file in files if file.split == "val"]
        train = [file for file in files if file.split == "train"]
        tokens = sum(file.tokens for file in train)
        found = []
        # It takes a batch while `pos + num_tokens + 1 < len(tokens)`, and drops the rest of a file.
        if val and sum((file.tokens - 2) // _VAL_BATCH_TOKENS for file in val) < _VAL_BATCHES:
            needed = _VAL_BATCHES * _VAL_BATCH_TOKENS + 2
            spread = f" (of {len(val):,} such files)" if len(val) > 1 else ""
            found.append(
                f"modded-nanogpt validates on {needed - 2:,} tokens and needs {needed:,} in one file; "
                f"{val[0].name} has {val[0].tokens:,}{spread}: its generator would end (StopIteration). Give "
                f"it --val-tokens {needed} and as many --shard-tokens or more, or set its val_tokens lower."
            )
        if len(train) == 1:  # it opens the second file before it yields the first batch
            found.append(
                "modded-nanogpt needs 2 training shards, but there is 1: its generator would end "
                f"(StopIteration). Choose --shard-tokens {-(-tokens // 2)} or less."
            )
        if train and tokens < TRAIN_TOKENS:
            found.append(
                f"{tokens:,} training tokens are too few for train_gpt.py: it takes at least "
                f"{TRAIN_TOKENS:,} and does not start again at the first file; it would end with a "
                "TypeError. Lower its num_scheduled_iterations, or let its generator use "
                "itertools.cycle(files)."
            )
        return found
