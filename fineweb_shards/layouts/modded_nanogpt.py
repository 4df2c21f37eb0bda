"""KellerJordan/modded-nanogpt: llm.c's files under the names `fineweb_{val|train}_{index:06d}.bin`.

It finds documents by the EOT at their start. It goes through its training files once, never from the
beginning again; it needs enough of them for its schedule, and enough validation tokens in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fineweb_shards.layouts import reader_limits as limits
from fineweb_shards.layouts.base import SizedFile
from fineweb_shards.layouts.llm_c import LlmC
from fineweb_shards.types import Dtype, Split
from fineweb_shards.units import show_number_of

_VALIDATION_STEPS = limits.VALIDATION_TOKENS // limits.VALIDATION_BATCH_TOKENS


class ModdedNanoGPT(LlmC):
    name = "modded-nanogpt"
    pattern = r"fineweb_(val|train)_\d{6,}\.bin"
    glob = r"fineweb_(val|train)_.*\.bin"
    widest_bytes = 2  # its _load_data_shard takes llm.c's first magic and torch.uint16 only
    without_split: ClassVar[dict[Split, str]] = {
        "train": "No files found for pattern",
        "val": "No files found for pattern",
    }

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return f"fineweb_{split}_{index:0{max(digits, self.digits)}d}.bin"

    def loader_lines(self, folder: str, names: Sequence[str], dtype: Dtype) -> list[str]:
        return [
            f'train_files = "{folder}/fineweb_train_*.bin"  # in train_gpt.py',
            f'val_files = "{folder}/fineweb_val_*.bin"',
        ]

    def warnings(self, files: Sequence[SizedFile]) -> list[str]:
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
    found = []
    if len(train) < limits.LEAST_TRAIN_SHARDS:
        found.append(
            f"modded-nanogpt needs {limits.LEAST_TRAIN_SHARDS} training shards, there is {len(train)}: its "
            f"generator would end (StopIteration). Choose --shard-tokens {-(-train[0].tokens // 2)} or less."
        )
    return found + _check_schedule(sum(file.tokens for file in train), sum(file.documents for file in train))


def _check_schedule(tokens: int, documents: int) -> list[str]:
    """It does not begin anew at the end of its files: they must last for all steps."""
    for script, stages, failure in (
        ("train_gpt.py", limits.STAGES, "end with a TypeError"),
        ("train_gpt_medium.py", limits.MEDIUM_STAGES, "wait for ever"),
    ):
        steps, all_steps = limits.most_steps(tokens, documents, stages), limits.steps_of(stages)
        if steps < all_steps:  # who has too few for the first has too few for the second
            return [
                f"{tokens:,} training tokens are too few for {script}: its {all_steps:,} steps take at least "
                f"{limits.tokens_of_stages(stages):,} (more where documents are cut), and it does not begin "
                f"anew; it would {failure} after {steps:,} steps at most. Lower its "
                "num_scheduled_iterations, or let its generator use itertools.cycle(files)."
            ]
    return []


def _check_documents(train: Sequence[SizedFile], stages: Sequence[limits.Stage]) -> list[str]:
    """Known from the counts alone: where the average is below a stage's, some batch must overflow. Where it
    is above, a run of short documents may still do it."""
    if not train:
        return []
    shortest = min(train, key=_average)
    over = [stage for stage in stages if _average(shortest) < stage.shortest_average_tokens]
    if not over:
        return []
    stage = over[0]
    return [_too_short(shortest, stage.most_documents, stage.gpu_tokens, "TRAIN_MAX_NUM_DOCS")]


def _check_validation_documents(val: Sequence[SizedFile]) -> list[str]:
    gpu_tokens, documents = limits.VALIDATION_GPU_TOKENS, limits.VALIDATION_DOCUMENTS
    if not val or _average(val[0]) >= gpu_tokens / documents:
        return []
    return [_too_short(val[0], documents, gpu_tokens, "max_num_docs")]


def _too_short(file: SizedFile, documents: int, gpu_tokens: int, setting: str) -> str:
    return (
        f"The documents of {file.name} have {_average(file):,.0f} tokens on average; modded-nanogpt has "
        f"places for {documents:,} in a batch of {gpu_tokens:,} tokens ({gpu_tokens / documents:,.0f} each), "
        "so that it would fail where they are read (The expanded size of the tensor must match). Make "
        f"documents longer (--separator), or raise its {setting}."
    )


def _average(file: SizedFile) -> float:
    return file.tokens / max(1, file.documents)
