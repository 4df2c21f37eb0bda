"""A run in the middle of its work, as the monitor sees it."""

from __future__ import annotations

from fineweb_shards.watching.run_files import Snapshot, State

SNAPSHOT = Snapshot(
    state=State.ENCODING, reason="", tokens=3_710_000, expected_tokens=10_000_000, expected_exact=False,
    resumed_tokens=0, shard=3, shard_tokens=710_000, shard_size_tokens=1_000_000,
    tokens_per_second=16_800.0, seconds_left=374.4, elapsed_seconds=220.0, workers=2,
    memory_bytes=731_000_000, peak_memory_bytes=744_000_000, finished_shards=3, verified_shards=0,
)  # fmt: skip
