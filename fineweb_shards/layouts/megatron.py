"""Describe Megatron-LM and GPT-NeoX: `fineweb_{train|val}_text_document.bin` and an `.idx` beside it.

The `.bin` holds the tokens of all documents, with EOD (our EOT) after each. The `.idx` lists where each
document is; store/megatron_index.py makes it when the `.bin` is finished. Megatron makes its own validation
split, so by default everything is for training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Dtype, Split
from fineweb_shards.vocabulary import Vocabulary

DTYPE_CODES = {"<u2": 8, "<i4": 4}  # in the index: uint16 and int32
_NARROW_IDS = 65_500  # Megatron's DType.optimal_dtype: int32 from this size on


class Megatron(Layout):
    """The layout of Megatron-LM and GPT-NeoX."""

    name = "megatron"
    eot_first = False
    one_file = True
    has_index = True
    pattern = r"fineweb_(train|val)_text_document\.(bin|idx)"

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return f"fineweb_{split}_text_document.bin"

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        return np.dtype("<u2" if vocabulary.size < _NARROW_IDS else "<i4")

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        return SplitRule()

    def loader_lines(self, folder: str, names: Sequence[str], dtype: Dtype) -> list[str]:
        prefixes = {name.split("_")[1]: f"{folder}/{name.removesuffix('.bin')}" for name in names}
        if len(prefixes) == 1:
            return [f"--data-path {prefix}" for prefix in prefixes.values()]
        return [f"--train-data-path {prefixes['train']} --valid-data-path {prefixes['val']}"]
