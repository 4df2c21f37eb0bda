"""Describe an output folder: what is finished, what it was made from, and where a resume starts.

The manifest is the only checkpoint. A shard is durable before its record is, so that the manifest never names
a shard that might be missing; a shard that it does not name is made again. It contains no path and no access
token of this machine: a folder can be moved to another one and finished there. manifest_file.py reads and
writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout, ShardFormat, tokens_of
from fineweb_shards.layouts.document_index import sidecars_of
from fineweb_shards.layouts.numbering import Numbering
from fineweb_shards.layouts.sidecar import Sidecar
from fineweb_shards.stream.packer import PackedTotals
from fineweb_shards.stream.split import SplitRule, make_split_rule
from fineweb_shards.types import Counts, Cursor, Quarantined, ShardRecord
from fineweb_shards.vocabulary import GPT2, Vocabulary


@dataclass(frozen=True)
class Manifest:
    """The state of an output folder. It is immutable; a change makes a new one, which is then saved."""

    settings: dict[str, Any]  # those that change the output: config.fingerprint()
    files: list[dict[str, Any]]  # of the input
    versions: dict[str, str]  # of the packages that made the shards
    commit: str | None = None  # of a dataset on the hub: a resume uses the same one
    shards: tuple[ShardRecord, ...] = ()
    complete: bool = False
    totals: dict[str, Any] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()  # documents left out; a resume must leave them out, too
    seconds: float = 0.0  # of work on these shards, over all runs
    peak_memory_bytes: int = 0
    digits: int = 0  # of the numbers in file names: see numbering.py
    vocabulary: Vocabulary = GPT2  # without the bytes of its tokens
    index: bool = False  # files have the sidecar of --index, too

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def shard_count(self) -> int:
        """The number of token files. A file that grows over several checkpoints has several records."""
        return len({record.name for record in self.shards})

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def counts(self) -> Counts:
        return sum((shard.counts for shard in self.shards), Counts())

    @property
    def layout(self) -> Layout:
        return get_layout(self.settings["layout"])

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The sidecars that each file has when the folder is complete."""
        return sidecars_of(self.layout, index=self.index)

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)

    @property
    def split_rule(self) -> SplitRule:
        default = self.layout.default_split_rule(self.settings["shard_tokens"])
        val_files = sum(file.get("for_validation", False) for file in self.files)
        return make_split_rule(self.settings, val_files, default)

    @property
    def numbering(self) -> Numbering:
        return Numbering(self.layout, self.settings["shard_tokens"], self.split_rule, self.digits)

    @property
    def done(self) -> PackedTotals:
        """What is finished of each split, for the packer."""
        return PackedTotals(tokens_of(self.shards, "val"), tokens_of(self.shards, "train"), self.documents)

    @property
    def end(self) -> Cursor:
        """The place in the stream where the next shard begins."""
        return self.shards[-1].end if self.shards else Cursor(0, 0)

    def append(self, *records: ShardRecord) -> Manifest:
        """Return a manifest with the records of one more checkpoint, which all have the same end."""
        return replace(self, shards=(*self.shards, *records))
