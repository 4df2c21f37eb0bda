"""An output folder in words: what is in it, what its reader will stumble over, how to train on it."""

from __future__ import annotations

from fineweb_shards.files import list_files
from fineweb_shards.layouts.base import tokens_of
from fineweb_shards.manifest import Manifest
from fineweb_shards.output import OutputSpec
from fineweb_shards.units import show_bytes


def content_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Where the files are and what they hold."""
    files = list_files(manifest.shards)
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    kind = "files" if spec.layout.one_file else "shards"
    val = tokens_of(manifest.shards, "val")
    tokens = f"{manifest.tokens:,}" + (f", {val:,} of them for validation" if spec.split.val_ratio else "")
    return [
        f"{'folder':<10} {spec.folder}",
        f"{kind:<10} {len(files):,}, {size}",
        f"{'tokens':<10} {tokens}",
        f"{'documents':<10} {manifest.documents:,}",
    ]


def output_notes(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """What is expected, and what a reader will stumble over."""
    notes = []
    last = manifest.shards[-1].tokens if manifest.shards else 0
    if dropped := manifest.totals["dropped_tokens"]:
        notes.append(f"The last {dropped:,} tokens do not fill a shard and were left out.")
    elif not spec.layout.one_file and 0 < last < spec.shard_tokens:
        notes.append(f"The last shard holds the rest, {last:,} tokens: that is expected, nothing is missing.")
    return notes + spec.layout.warnings(manifest.shards, spec.shard_tokens)


def training_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """How to feed a loader."""
    names = [file.name for file in list_files(manifest.shards)]
    if not names:
        return []
    lines = spec.layout.loader_lines(str(spec.folder), names)
    return ["", "To train on them:", "", *(f"    {line}" for line in lines)]
