"""KellerJordan/modded-nanogpt: llm.c's files under the names `fineweb_{val|train}_{index:06d}.bin`.

It looks for documents by the EOT at their start, and wants at least two training shards and enough tokens
for its fixed validation run.
"""

from __future__ import annotations

from collections.abc import Sequence

from fineweb_shards.layouts.base import tokens_of
from fineweb_shards.layouts.llm_c import LlmC
from fineweb_shards.split import Side
from fineweb_shards.types import ShardRecord

VALIDATION_TOKENS = 10_485_760  # what it evaluates on; it reads a little beyond
VALIDATION_SLACK_TOKENS = 2**17
MINIMUM_TRAIN_SHARDS = 2


class ModdedNanoGPT(LlmC):
    name = "modded-nanogpt"
    pattern = r"fineweb_(val|train)_\d{6,}\.bin"

    def shard_name(self, side: Side, index: int, digits: int = 0) -> str:
        return f"fineweb_{side}_{index:0{max(digits, self.digits)}d}.bin"

    def loader_lines(self, folder: str, names: Sequence[str]) -> list[str]:
        return [
            f'train_files = "{folder}/fineweb_train_*.bin"  # in train_gpt.py',
            f'val_files = "{folder}/fineweb_val_*.bin"',
        ]

    def warnings(self, shards: Sequence[ShardRecord], shard_tokens: int) -> list[str]:
        found = []
        needed = VALIDATION_TOKENS + VALIDATION_SLACK_TOKENS
        if (tokens := tokens_of(shards, "val")) < needed:
            found.append(
                f"modded-nanogpt validates on {VALIDATION_TOKENS:,} tokens and reads a little beyond; there "
                f"are {tokens:,}: set its val_tokens lower, or give it --val-tokens {needed:,}."
            )
        if (count := len({shard.name for shard in shards if shard.split == "train"})) < MINIMUM_TRAIN_SHARDS:
            found.append(
                f"modded-nanogpt needs {MINIMUM_TRAIN_SHARDS} training shards; there "
                f"{'is' if count == 1 else 'are'} {count}: choose a smaller --shard-tokens."
            )
        return found
