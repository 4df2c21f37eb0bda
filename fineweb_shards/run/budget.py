"""Divide the memory among the parent, the workers and the text in flight, before a run starts.

During the run system/memory_guard.py watches what is really used.
"""

from __future__ import annotations

from dataclasses import dataclass

from fineweb_shards.errors import UsageError
from fineweb_shards.system.machine import available_memory_bytes, memory_limits, usable_cores
from fineweb_shards.tokenizers.cuts import LONGEST_UNCUT_BYTES
from fineweb_shards.units import show_bytes
from fineweb_shards.vocabulary import GPT2, Vocabulary

# What a process may take. Measured: two workers, the parent and the text in flight peak at 470 to 620 MB from the disk,
# at 810 MB from a hub (PSS). In the second pass of a shuffle the parent has lists of documents, PART_BYTES at the most
# (formats/piles.py).
WORKER_BYTES = 240 * 2**20
PARENT_BYTES = 192 * 2**20
# What a worker takes for each id beyond those of GPT-2. Measured: gigatoken and the reference together 500 to 800 bytes
# for each id of cl100k_base, o200k_base, Llama 3 and DeepSeek.
_ID_BYTES = 1000
# A batch takes its text, packed and unpacked, and its tokens, as the engine makes them and as they are kept.
COPIES = 4
# What a reference takes for each byte of a long document that is not cut, on top of that. Measured with English,
# Chinese, base64, one letter, dashes, spaces and line ends: tiktoken and sentencepiece up to 51, Hugging Face's
# tokenizers up to 250 (200 for English).
_UNCUT_COPIES = {"tiktoken": 64, "sentencepiece": 64}
_MOST_UNCUT_COPIES = 256
# What a worker takes for each byte of a page of a parquet file that is one document. Measured: 584 MB in all for 100
# MiB, 1,040 MB for 200 MiB.
_PAGE_COPIES = 5
MAXIMUM_WINDOW_BYTES = 192 * 2**20
_BATCHES_PER_WORKER = 4  # of many workers: two to encode, two that wait for their turn to be written
# The default budget is a quarter of what is available, and no more than is of use.
BUDGET_SHARE = 4
MAXIMUM_BUDGET_BYTES = 4 * 2**30
BUDGET_BYTES_PER_CORE = 320 * 2**20  # beyond that


@dataclass(frozen=True, slots=True)
class Budget:
    """How many workers a run has, and how much memory."""

    workers: int
    memory_bytes: int
    window_bytes: int  # the most text in flight
    wanted_workers: int | None = None  # as requested; the memory may not be enough for them

    @property
    def worker_bytes(self) -> int:
        """A worker's share of the memory, including its part of the text in flight."""
        return (self.memory_bytes - PARENT_BYTES) // self.workers

    @property
    def largest_page_bytes(self) -> int:
        """The largest page of a parquet file, unpacked, for which one worker has memory; not all at once."""
        return max(0, self.memory_bytes - PARENT_BYTES - WORKER_BYTES) // _PAGE_COPIES


def plan_budget(
    workers: int | None,
    max_memory: int | None,
    batch_bytes: int,
    vocabulary: Vocabulary = GPT2,
    upload_bytes: int = 0,
) -> Budget:
    """Divide the memory among the workers, of which there are fewer if it is not enough for all.

    There is memory for one long document that is not cut, and not for one in each worker: they are rare, and would cost
    most of the workers. If several come at once, the memory guard holds the others back. `upload_bytes` is what a
    worker takes to send a shard to a bucket.
    """
    memory = _memory_budget_bytes(max_memory)
    wanted = workers or usable_cores()
    least_window = 2 * batch_bytes
    reserved = PARENT_BYTES
    if vocabulary.cut_rule != "gpt2":  # with GPT-2's rule every document has a place to cut
        reserved += LONGEST_UNCUT_BYTES * _UNCUT_COPIES.get(vocabulary.reference, _MOST_UNCUT_COPIES)
    worker_bytes = WORKER_BYTES + _ID_BYTES * max(0, vocabulary.size - GPT2.size) + upload_bytes
    fitting = min(wanted, (memory - reserved - least_window * COPIES) // worker_bytes)
    if fitting < 1:
        needed = reserved + worker_bytes + least_window * COPIES
        found = "A memory budget of" if max_memory is None else "--max-memory"
        hint = "Give more with --max-memory, close other programs, or use a smaller --batch-bytes."
        if max_memory and max_memory < 2**20:  # surely a missing unit
            unit = "MiB" if max_memory * 2**20 >= needed else "GiB"
            hint = f"Did you mean --max-memory {max_memory}{unit}? A number without a unit counts bytes."
        raise UsageError(f"{found} {show_bytes(memory)} is too small: one worker needs {show_bytes(needed)}.", hint)
    window = (memory - reserved - fitting * worker_bytes) // COPIES
    useful = max(MAXIMUM_WINDOW_BYTES, least_window, fitting * _BATCHES_PER_WORKER * batch_bytes)
    return Budget(fitting, memory, min(window, useful), workers)


def _memory_budget_bytes(max_memory: int | None) -> int:
    """Return the requested budget, checked to exist, or by default a share of what is available."""
    if max_memory is None:
        useful = max(MAXIMUM_BUDGET_BYTES, usable_cores() * BUDGET_BYTES_PER_CORE)
        return min(available_memory_bytes() // BUDGET_SHARE, useful)
    smallest = min(memory_limits(), key=lambda limit: limit.total_bytes)
    if max_memory > smallest.total_bytes:
        raise UsageError(
            f"--max-memory {show_bytes(max_memory)}: {smallest.name} has {show_bytes(smallest.total_bytes)}.",
            "Leave it out for a quarter of what is available, or name less than that.",
        )
    return max_memory
