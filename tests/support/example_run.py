"""A run in the middle of its work, as the monitor sees it, and the manifest of a mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fineweb_shards.output.manifest import InputPart, Manifest
from fineweb_shards.run.config import Config
from fineweb_shards.types import Counts, Cursor, ShardRecord, Taken
from fineweb_shards.watching.run_files import Snapshot, State
from tests.support import runs

SNAPSHOT = Snapshot(
    state=State.ENCODING, reason="", tokens=3_710_000, expected_tokens=10_000_000, expected_exact=False,
    resumed_tokens=0, shard=3, shard_tokens=710_000, shard_size_tokens=1_000_000,
    tokens_per_second=16_800.0, seconds_left=374.4, elapsed_seconds=220.0, workers=2,
    memory_bytes=731_000_000, peak_memory_bytes=744_000_000, finished_shards=3, verified_shards=0,
)  # fmt: skip


def mix_manifest(
    weights: Sequence[int], *states: Sequence[int], files: int = 2, val_files: int = 0, epochs: int = 1, ended: int = -1
) -> Manifest:
    """A folder with one record for each state of a mix: how many tokens of each part are taken, and a tenth as many
    documents. Each part is in its second file, but for the one that has `ended`."""
    listed = [
        {"name": f"{number}.jsonl", "size_bytes": 1, "content_hash": "", "for_validation": number < val_files}
        for number in range(val_files + files)
    ]
    manifest = runs.manifest_of(Config().fingerprint(), listed)
    own = manifest.parts[0].settings
    parts = tuple(
        InputPart({**own, "dataset": f"org/part-{part}", "weight": weight, "epochs": epochs}, listed)
        for part, weight in enumerate(weights)
    )
    end = tuple(
        Cursor(val_files + (files * epochs if part == ended else 1), 0, skip_tokens=5) for part in range(len(parts))
    )
    records, before = [], 0
    for number, state in enumerate(states):
        taken = tuple(Taken(tokens, tokens // 10) for tokens in state)
        tokens, before = sum(state) - before, sum(state)
        name = f"edufineweb_train_{number:06d}.npy"
        records.append(ShardRecord(name, "train", 0, tokens, tokens // 10, 2 * tokens, "ab" * 32, end, Counts(), taken))
    return replace(manifest, parts=parts, shards=tuple(records))
