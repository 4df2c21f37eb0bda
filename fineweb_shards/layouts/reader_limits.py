"""List what the readers require of their files: each figure once, with its source in the reader's code.

docs/layouts.md states the same figures, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# build-nanogpt's train_gpt2.py: B, T = 64, 1024; llm.c's run_gpt2_124M.sh: -b 64 -t 1024.
BATCH_ROWS, BATCH_LENGTH = 64, 1024

# nanoGPT's get_batch: `torch.randint(len(data) - block_size, …)` needs at least one position.
NANOGPT_BLOCK_TOKENS = 1024
NANOGPT_SHORTEST_TOKENS = NANOGPT_BLOCK_TOKENS + 1

# modded-nanogpt divides every batch into 8 parts: with fewer GPUs each takes several (grad_accum_steps).
_PARTS = 8
# modded-nanogpt's Hyperparameters: val_tokens, val_batch_size. It takes a batch while
# `pos + num_tokens + 1 < len(tokens)`, and drops the remaining tokens of a file.
VALIDATION_TOKENS = 10_485_760
VALIDATION_BATCH_TOKENS = 4 * 64 * 1024 * 8
VALIDATION_FILE_TOKENS = VALIDATION_TOKENS + 2
# `next_multiple_of_n(num_tokens_local // 300, n=128)` entries, of which one is for the leading 0.
VALIDATION_GPU_TOKENS = VALIDATION_BATCH_TOKENS // _PARTS
VALIDATION_DOCUMENTS = 896 - 1
LEAST_TRAIN_SHARDS = 2  # it opens the second file before it yields the first batch


@dataclass(frozen=True, slots=True)
class Stage:
    """A number of steps of modded-nanogpt's training that all have the same batch size."""

    steps: int
    batch_tokens: int  # of all GPUs
    longest_document_tokens: int  # the rest of a longer document is skipped
    most_documents: int  # in the batch of a GPU

    @property
    def gpu_tokens(self) -> int:
        return self.batch_tokens // _PARTS

    @property
    def shortest_average_tokens(self) -> float:
        """The average length below which a batch has more documents than the reader has room for."""
        return self.gpu_tokens / self.most_documents


# train_gpt.py: TRAINING_STAGES over 1,270 + 15 steps, TRAIN_MAX_NUM_DOCS (one entry is for the leading 0).
STAGES = (
    Stage(423, 8 * 2048 * 8, 896, 63),
    Stage(424, 16 * 2048 * 8, 2048, 95),
    Stage(423 + 15, 24 * 2048 * 8, 2048, 127),
)
# train_gpt_medium.py: train_bs_schedule in twelfths of 4,700 steps, and 40 more.
MEDIUM_STAGES = (
    Stage(392, 131_072, 4096, 127),
    Stage(392, 262_144, 4096, 127),
    Stage(391, 393_216, 4096, 255),
    Stage(3525 + 40, 524_288, 4096, 255),
)


def shortest_shard_tokens(gpus: int) -> int:
    """Return how many tokens a shard of build-nanogpt and llm.c needs: a batch of all GPUs, and one."""
    return gpus * BATCH_ROWS * BATCH_LENGTH + 1


def steps_of(stages: Sequence[Stage]) -> int:
    """Return how many steps a training of these stages takes."""
    return sum(stage.steps for stage in stages)


def tokens_of_stages(stages: Sequence[Stage]) -> int:
    """Return how many tokens a training of these stages takes if no document is cut."""
    return sum(stage.steps * stage.batch_tokens for stage in stages)


def most_steps(tokens: int, documents: int, stages: Sequence[Stage]) -> int:
    """Return for how many steps `tokens` tokens in `documents` documents can last.

    This is an upper bound: it assumes documents of average length, cut to the stage's longest document.
    """
    average = tokens / max(1, documents)
    left, steps = float(max(1, documents)), 0
    for stage in stages:
        documents_a_step = stage.batch_tokens / min(average, stage.longest_document_tokens)
        possible = min(stage.steps, int(left / documents_a_step + 1e-9))
        steps += possible
        if possible < stage.steps:
            break
        left -= possible * documents_a_step
    return steps


def validation_batches(sizes: Sequence[int], batch_tokens: int = VALIDATION_BATCH_TOKENS) -> int:
    """Return how many batches modded-nanogpt takes from validation files of these sizes before it fails."""
    batches = 0
    for number, tokens in enumerate(sizes):
        if number and tokens < batch_tokens + 1:
            return batches  # it does not check the length of the next file
        batches += max(1 if number else 0, (tokens - 2) // batch_tokens)
    return batches
