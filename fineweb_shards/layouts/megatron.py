"""Megatron-LM and GPT-NeoX: `fineweb_{train|val}_text_document.bin` and an `.idx` beside it.

The `.bin` is tokens document after document, EOD after each. The `.idx` (see index.py) says where each
document is; it is made when the `.bin` is whole. Megatron splits by itself, so all is for training.
"""

from __future__ import annotations

from collections.abc import Sequence

from fineweb_shards.layouts.base import Layout
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Split


class Megatron(Layout):
    name = "megatron"
    eot_first = False
    one_file = True
    has_index = True
    pattern = r"fineweb_(train|val)_text_document\.(bin|idx)"

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return f"fineweb_{split}_text_document.bin"

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        return SplitRule()

    def loader_lines(self, folder: str, names: Sequence[str]) -> list[str]:
        prefixes = {name.split("_")[1]: f"{folder}/{name.removesuffix('.bin')}" for name in names}
        if len(prefixes) == 1:
            return [f"--data-path {prefix}" for prefix in prefixes.values()]
        return [f"--train-data-path {prefixes['train']} --valid-data-path {prefixes['val']}"]
