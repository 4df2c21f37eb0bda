"""How much memory and disk space a run may use, decided before it starts.

The memory is divided among the parent, the workers and the text in flight; during the run system/memory_guard.py
watches the actual use.

On the disk a build or an export needs the size of the shards; with a bucket, of the unfinished ones. The piles of a
shuffle take as much as the result, and its list of documents a little more. The second pass deletes each pile once
everything from it is recorded, so its peak is the size of the result, plus shards that are not recorded yet and the
largest pile. Piles on another disk (--scratch) are checked separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.errors import DiskFullError, UsageError
from fineweb_shards.formats.piles import ENTRY_BYTES
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.machine import available_memory_bytes, disk_of, free_disk_bytes, memory_limits, usable_cores
from fineweb_shards.tokenizers.cuts import LONGEST_UNCUT_BYTES
from fineweb_shards.units import show_bytes
from fineweb_shards.vocabulary import GPT2, Vocabulary
from fineweb_shards.writing.placement import shards_at_once

# What a process may take. Measured: two workers, the parent and the text in flight peak at 470 to 620 MB from the disk,
# at 810 MB from a hub (PSS). In the second pass of a shuffle the parent holds lists of documents, at most PART_BYTES
# (formats/piles.py).
WORKER_BYTES = 240 * 2**20
PARENT_BYTES = 192 * 2**20
# Per worker and id beyond those of GPT-2. Measured: gigatoken and the reference together take 500 to 800 bytes per id
# of cl100k_base, o200k_base, Llama 3 and DeepSeek.
_ID_BYTES = 1000
# Per byte of a batch: its text, packed and unpacked, and its tokens, from the engine and as stored.
COPIES = 4
# What a reference takes on top, per byte of a long document that is not cut. Measured with English,
# Chinese, base64, one letter, dashes, spaces and line ends: tiktoken and sentencepiece up to 51, Hugging Face's
# tokenizers up to 250 (200 for English).
_UNCUT_COPIES = {"tiktoken": 64, "sentencepiece": 64}
_MOST_UNCUT_COPIES = 256
# What a worker takes per byte of a parquet page that is one document. Measured: 584 MB in all for 100 MiB, 1,040 MB for
# 200 MiB.
_PAGE_COPIES = 5
MAXIMUM_WINDOW_BYTES = 192 * 2**20
_BATCHES_PER_WORKER = 4  # with many workers: two being encoded, two waiting to be written
# The default budget is a quarter of the available memory, limited to what is useful.
BUDGET_SHARE = 4
MAXIMUM_BUDGET_BYTES = 4 * 2**30
BUDGET_BYTES_PER_CORE = 320 * 2**20  # beyond that


@dataclass(frozen=True, slots=True)
class Budget:
    workers: int
    memory_bytes: int
    window_bytes: int  # the most text in flight
    wanted_workers: int | None = None  # as requested; there may not be enough memory for them

    @property
    def worker_bytes(self) -> int:
        """A worker's share of the memory, including its part of the text in flight."""
        return (self.memory_bytes - PARENT_BYTES) // self.workers

    @property
    def largest_page_bytes(self) -> int:
        """The largest page of a parquet file, unpacked, that one worker has memory for; not all workers at once."""
        return max(0, self.memory_bytes - PARENT_BYTES - WORKER_BYTES) // _PAGE_COPIES


def plan_budget(
    workers: int | None, max_memory: int | None, batch_bytes: int, vocabulary: Vocabulary = GPT2, upload_bytes: int = 0
) -> Budget:
    """Divide the memory among the workers, and reduce their number if it is not enough for all.

    Memory is reserved for one long document that is not cut, not for one per worker: they are rare, and the memory
    guard holds others back. `upload_bytes` is what a worker needs to send a shard to a bucket.
    """
    if max_memory is None:
        useful = max(MAXIMUM_BUDGET_BYTES, usable_cores() * BUDGET_BYTES_PER_CORE)
        memory = min(available_memory_bytes() // BUDGET_SHARE, useful)
    else:
        memory, smallest = max_memory, min(memory_limits(), key=lambda limit: limit.total_bytes)
        if memory > smallest.total_bytes:
            raise UsageError(
                f"--max-memory {show_bytes(memory)}: {smallest.name} has {show_bytes(smallest.total_bytes)}.",
                "Leave it out to use a quarter of what is available, or name less than that.",
            )
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
        hint = "Give more, such as --max-memory 2GiB, close other programs, or use a smaller --batch-bytes."
        raise UsageError(f"{found} {show_bytes(memory)} is too small: one worker needs {show_bytes(needed)}.", hint)
    window = (memory - reserved - fitting * worker_bytes) // COPIES
    useful = max(MAXIMUM_WINDOW_BYTES, least_window, fitting * _BATCHES_PER_WORKER * batch_bytes)
    return Budget(fitting, memory, min(window, useful), workers)


@dataclass(frozen=True, slots=True)
class Rest:
    tokens: int  # of the whole stream
    documents: int
    done_tokens: int  # in finished shards
    workers: int
    piles: PileState | None = None  # of a shuffle
    val_tokens: int = 0  # in the pile of files for validation; approximate


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """The peak of what a disk must hold in addition to its present contents."""

    folder: Path
    size_bytes: int
    pile_bytes: int  # of these, for the piles of a shuffle
    free_bytes: int


def find_needs(spec: OutputSpec, pile_folder: Path, rest: Rest) -> list[DiskNeed]:
    """Return what is needed on the disk of the output and, if the piles are on another disk, on that one."""
    size_bytes, piles = spec.shard_format.size_bytes, rest.piles
    shard, at_once = size_bytes(spec.shard_tokens), shards_at_once(rest.workers)
    shards = size_bytes(max(0, rest.tokens - rest.done_tokens))
    if spec.store.is_remote:  # only what is in progress is on this machine
        shards = min(shards, at_once * shard)
    if piles is None:
        return [DiskNeed(spec.folder, shards, 0, free_disk_bytes(spec.folder))]
    left = 0
    if not piles.ended:
        left = size_bytes(max(0, rest.tokens - sum(piles.tokens)))
        left += max(0, ENTRY_BYTES * rest.documents - piles.list_bytes)
    if piles.in_bucket:
        shards += max(0, ENTRY_BYTES * rest.documents - piles.list_bytes)
        return [DiskNeed(spec.folder, shards, 0, free_disk_bytes(spec.folder))]
    free = free_disk_bytes(pile_folder)
    if not any(piles.tokens):  # when a first pass begins, it removes the files of an earlier one
        free += sum(path.stat().st_size for path in pile_folder.glob("*"))
    if disk_of(pile_folder) != disk_of(spec.folder):
        return [DiskNeed(spec.folder, shards, 0, free_disk_bytes(spec.folder)), DiskNeed(pile_folder, left, left, free)]
    val, *train = piles.tokens
    val = val if piles.ended else max(val, rest.val_tokens)
    pile = size_bytes(max(rest.tokens // piles.count, val if rest.done_tokens < val else 0, *train))
    return [DiskNeed(spec.folder, left + min(shards, at_once * shard + pile), left, free)]


def check_needs(needs: Iterable[DiskNeed], spec: OutputSpec, *, exact: bool, has_limit: bool = True) -> None:
    """Raise DiskFullError if a disk is too small, with a tolerance for estimates. `has_limit`: --max-tokens applies."""
    about, remark = ("", "") if exact else ("about ", " (an estimate)")
    for need in needs:
        needed, free = need.size_bytes, need.free_bytes
        if free >= (needed if exact else 0.9 * needed):
            continue
        place = "--out or --scratch" if need.pile_bytes else "--out"
        if spec.store.is_remote or need.folder != spec.folder:
            place = "--scratch"
        what = ["the piles of the shuffle"] if need.pile_bytes else []
        what += ["the shards"] if needed > need.pile_bytes or not need.pile_bytes else []
        limit = ", or end earlier with --max-tokens" if has_limit else ""
        raise DiskFullError(
            f"{need.folder}: {' and '.join(what)} need {about}{show_bytes(needed)}{remark}, {show_bytes(free)} "
            f"are free: {about}{show_bytes(needed - free)} are missing.",
            f"Free some space, choose another {place}{limit}.",
        )
