"""Describe NVIDIA-NeMo/Automodel: `dataset_{val|train}_{index:06d}.bin`, EOT before each document.

The header is llm.c's with another magic and the width of a token. A `.bos.idx` beside each file has the positions of
the EOTs, which the reader (NanogptDataset) calls BOS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from fineweb_shards.layouts.base import Layout, quote_pattern
from fineweb_shards.layouts.llm_c import HEADER_INTS, int_header
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar
from fineweb_shards.types import Dtype, Positions, Split
from fineweb_shards.vocabulary import Vocabulary

MAGIC, VERSION = 278895051, 1


class BosIndex(Sidecar):
    """The `.bos.idx`: the position of each EOT as int32, in tokens, as the reader expects. Its own tool writes a
    mixture of bytes and tokens (nanogpt_data_processor.py adds a number of tokens to `bin_fp.tell()`)."""

    endings = ".bin", ".bos.idx"

    def size_bytes(self, file: FileFacts) -> int:
        return 4 * file.eots

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        return (places.astype("<i4").tobytes() for places in eots)


class Automodel(Layout):
    name = "automodel"
    eot_first = True
    header_bytes = 4 * HEADER_INTS
    largest_bytes = 2**32 - 1  # as in its own tool; positions and the header's count are int32
    sidecars = (BosIndex(),)
    file_name = "dataset_{split}_{number}.bin"
    pattern = r"dataset_(val|train)_\d{6,}\.(bin|bos\.idx)"
    missing_split_errors: ClassVar[dict[Split, str]] = {"train": "No files matched pattern"}

    def header(self, tokens: int, dtype: Dtype) -> bytes:
        return int_header(MAGIC, VERSION, tokens, dtype.itemsize)

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        return [
            "dataset:",
            "  _target_: nemo_automodel.components.datasets.llm.nanogpt_dataset.NanogptDataset",
            f"  file_pattern: {quote_pattern(folder, 'dataset_train_*.bin')}",
        ]
