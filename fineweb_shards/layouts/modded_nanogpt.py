"""Describe KellerJordan/modded-nanogpt: llm.c's files, named `fineweb_{val|train}_{index:06d}.bin`.

The reader finds documents by the EOT at their start. It reads its training files only once, so there must
be enough tokens for its schedule; and it needs enough validation tokens in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fineweb_shards.layouts import reader_limits as limits
from fineweb_shards.layouts.base import SizedFile, quote_pattern
from fineweb_shards.layouts.llm_c import LlmC
from fineweb_shards.types import Split
from fineweb_shards.units import show_number_of
from fineweb_shards.vocabulary import Vocabulary

_VALIDATION_STEPS = limits.VALIDATION_TOKENS // limits.VALIDATION_BATCH_TOKENS


class ModdedNanoGPT(LlmC):
    """The layout of modded-nanogpt."""

    name = "modded-nanogpt"
    pattern = r"fineweb_(val|train)_\d{6,}\.bin"
    glob = r"fineweb_(val|train)_.*\.bin"
    widest_bytes = 2  # its _load_data_shard accepts only llm.c's 2-byte magic and torch.uint16
    missing_split_errors: ClassVar[dict[Split, str]] = {
        "train": "No files found for pattern",
        "val": "No files found for pattern",
    }

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return f"fineweb_{split}_{index:0{max(digits, self.digits)}d}.bin"

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        return [
            f"train_files = {quote_pattern(folder, 'fineweb_train_*.bin')}  # in train_gpt.py",
            f"val_files = {quote_pattern(folder, 'fineweb_val_*.bin')}",
        ]

    def warnings(self, files: Sequence[SizedFile], gpus: int = 1) -> list[str]:
        val = sorted((file for file in files if file.split == "val"), key=lambda file: file.name)
        train = [file for file in files if file.split == "train"]
        checks = [
            *(_check_validation(val) if val else ()),
            *(_check_training(train) if train else ()),
            *_check_documents(train, limits.STAGES),
            *_check_validation_documents(val),
        ]
        return [sentence for sentence in checks if sentence]


def _check_validation(val: Sequence[SizedFile]) -> list[str]:
    """Warn if the validation files hold too few batches."""
    if limits.validation_batches([file.tokens for file in val]) >= _VALIDATION_STEPS:
        return []
    needed = limits.VALIDATION_FILE_TOKENS
    spread = f", and {show_number_of(len(val) - 1, 'more file')} of them" if len(val) > 1 else ""
    return [
        f"modded-nanogpt validates on {limits.VALIDATION_TOKENS:,} tokens and needs {needed:,} in one file; "
        f"{val[0].name} has {val[0].tokens:,}{spread}: its generator would end (StopIteration). Give it "
        f"--val-tokens {needed} and as many --shard-tokens or more, or set its val_tokens lower."
    ]


def _check_training(train: Sequence[SizedFile]) -> list[str]:
    """Warn if there are too few training shards, or too few tokens for the schedule."""
    found = []
    if len(train) < limits.LEAST_TRAIN_SHARDS:
        found.append(
            f"modded-nanogpt needs {limits.LEAST_TRAIN_SHARDS} training shards, there is {len(train)}: its "
            f"generator would end (StopIteration). Choose --shard-tokens {-(-train[0].tokens // 2)} or less."
        )
    return found + _check_schedule(sum(file.tokens for file in train), sum(file.documents for file in train))


def _check_schedule(tokens: int, documents: int) -> list[str]:
    """Warn if there are too few tokens for all steps: the reader does not start again at the first file."""
    for script, stages, failure in (
        ("train_gpt.py", limits.STAGES, "end with a TypeError"),
        ("train_gpt_medium.py", limits.MEDIUM_STAGES, "wait for ever"),
    ):
        steps, all_steps = limits.most_steps(tokens, documents, stages), limits.steps_of(stages)
        if steps < all_steps:  # too few for the first script are too few for the second
            return [
                f"{tokens:,} training tokens are too few for {script}: its {all_steps:,} steps take at least "
                f"{limits.tokens_of_stages(stages):,} (more if documents are cut), and it does not start "
                f"again at the first file; it would {failure} after {steps:,} steps at most. Lower its "
                "num_scheduled_iterations, or let its generator use itertools.cycle(files)."
            ]
    return []


def _check_documents(train: Sequence[SizedFile], stages: Sequence[limits.Stage]) -> list[str]:
    """Warn if a batch must have more documents than the reader has room for.

    This is decided from the averages of the files: below a stage's limit, some batch must overflow. Above it,
    a run of short documents may still overflow one; that is not found here.
    """
    if not train:
        return []
    shortest = min(train, key=_average)
    over = [stage for stage in stages if _average(shortest) < stage.shortest_average_tokens]
    if not over:
        return []
    stage = over[0]
    return [_too_short(shortest, stage.most_documents, stage.gpu_tokens, "TRAIN_MAX_NUM_DOCS")]


def _check_validation_documents(val: Sequence[SizedFile]) -> list[str]:
    """Warn if a validation batch must have more documents than the reader has room for."""
    gpu_tokens, documents = limits.VALIDATION_GPU_TOKENS, limits.VALIDATION_DOCUMENTS
    if not val or _average(val[0]) >= gpu_tokens / documents:
        return []
    return [_too_short(val[0], documents, gpu_tokens, "max_num_docs")]


def _too_short(file: SizedFile, documents: int, gpu_tokens: int, setting: str) -> str:
    return (
        f"The documents of {file.name} have {_average(file):,.0f} tokens on average; modded-nanogpt has "
        f"room for {documents:,} in a batch of {gpu_tokens:,} tokens ({gpu_tokens / documents:,.0f} each), "
        "so that it would fail when it reads them (The expanded size of the tensor must match). Make "
        f"documents longer (--separator), or raise its {setting}."
    )


def _average(file: SizedFile) -> float:
    return file.tokens / max(1, file.documents)
