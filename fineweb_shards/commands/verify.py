"""`verify`: read every shard of a folder back and check it against the manifest."""

from __future__ import annotations

import argparse

from fineweb_shards.commands.targets import add_folder, read_named_store
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.screen import LineScreen, print_result


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder to verify."""
    add_folder(parser)


def run(options: argparse.Namespace) -> None:
    """Check all shards, print the damaged ones, and print how much was checked."""
    ignore_closed_output()
    store = read_named_store(options)
    verdict = check_folder(store, LineScreen().warn)
    manifest = verdict.manifest
    alive = store.is_locked()
    if names := verdict.unfinished:
        which = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names):,} files)"
        stopped = "when the run was stopped; the next build makes it again"
        why = "yet; the build that is at work makes it" if alive else stopped
        print_result(f"{which}: not finished {why}.")
    next_step = "a build is at work here" if alive else "the build is not finished; run its command again"
    state = "complete" if manifest.complete else f"so far: {next_step}"
    count = show_number_of(manifest.shard_count, "shard")
    print_result(f"{store.location}: {count}, {manifest.tokens:,} tokens verified, {state}.")
