"""Describe the output of a run: the store, the layout, and how the stream is divided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.layouts.base import Layout, ShardFormat
from fineweb_shards.store.store import Store
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What to write, and where."""

    store: Store
    layout: Layout
    vocabulary: Vocabulary
    shard_tokens: int
    split_rule: SplitRule
    drop_short: bool = False  # delete a last training shard that is not full
    gpus: int = 1  # that will train on it; only warnings depend on it

    @property
    def folder(self) -> Path:
        """The folder on this machine: the output folder, unless the store is elsewhere."""
        return self.store.folder

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)
