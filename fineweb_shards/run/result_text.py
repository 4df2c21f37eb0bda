"""Describe a finished output folder in lines of text: what is in it, warnings, how to train on it."""

from __future__ import annotations

from fineweb_shards.buckets.address import BucketAddress
from fineweb_shards.buckets.copy_command import copy_command
from fineweb_shards.layouts.base import quote_string, tokens_of
from fineweb_shards.run.trainer_warnings import reader_warnings, stray_warnings
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.shard_files import list_files
from fineweb_shards.store.sidecars import with_sidecars
from fineweb_shards.store.store import OutputSpec
from fineweb_shards.units import show_bytes


def content_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Say where the files are and what they hold."""
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    kind = "files" if spec.layout.one_file else "shards"
    val = tokens_of(manifest.shards, "val")
    tokens = f"{manifest.tokens:,}" + (
        "" if spec.split_rule.counts_tokens else f", {val:,} of them for validation"
    )
    return [
        f"{'folder':<10} {spec.store.location}",
        f"{kind:<10} {manifest.shard_count:,}, {size}",
        f"{'tokens':<10} {tokens}",
        f"{'documents':<10} {manifest.documents:,}",
    ]


def output_notes(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Explain what looks like a fault but is expected."""
    if dropped := manifest.totals["dropped_tokens"]:
        return [f"The last {dropped:,} tokens do not fill a shard and were left out."]
    last = manifest.shards[-1] if manifest.shards else None
    if last and last.split == "train" and last.tokens < spec.shard_tokens and not spec.layout.one_file:
        return [
            f"The last shard holds the rest, {last.tokens:,} tokens: that is expected, nothing is missing."
        ]
    return []


def output_warnings(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Return warnings about problems that the loader will have with these files."""
    dropped = manifest.totals["dropped_tokens"]
    finished = with_sidecars(manifest, {record.name for record in manifest.shards})
    return [
        *reader_warnings(spec, list_files(manifest.shards), dropped_tokens=dropped),
        *stray_warnings(spec.store, spec.layout, finished),
    ]


def warning_lines(warnings: list[str]) -> list[str]:
    """Format warnings, to be printed last, where they are noticed."""
    return [line for warning in warnings for line in ("", f"{'WARNING':<10} {warning}")]


def training_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Say how to load the files; nothing if there is nothing to train on."""
    if not tokens_of(manifest.shards, "train"):
        return []
    names = [file.name for file in list_files(manifest.shards)]
    store, vocabulary = spec.store, spec.vocabulary
    if not store.is_remote:
        lines = spec.layout.loader_lines(store.location, names, vocabulary)
    else:
        command, folder = copy_command(BucketAddress.parse(store.location))
        lines = [
            "from fineweb_shards.loader import ShardLoader  # fetches them as they are needed",
            f'loader = ShardLoader({quote_string(store.location)}, "train", batch_size=64, seq_len=1024)',
            "",
            "# for a trainer that reads files itself, copy them here:",
            command,
            *spec.layout.loader_lines(folder, names, vocabulary),
        ]
    return ["", "To train on them:", "", *(f"    {line}".rstrip() for line in lines)]
