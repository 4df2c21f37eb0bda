"""`plan`: show what a build would do, without writing anything."""

from __future__ import annotations

import argparse
import dataclasses

from fineweb_shards.commands.arguments import add_config_flags
from fineweb_shards.commands.console import WaitsOnScreen, print_result
from fineweb_shards.commands.targets import read_config
from fineweb_shards.errors import ShardError
from fineweb_shards.run.job import make_job, pinned_commit
from fineweb_shards.run.plan import check_disk, make_plan
from fineweb_shards.run.plan_text import plan_lines, verdict_on
from fineweb_shards.run.resume import open_manifest
from fineweb_shards.system.durable import is_locked
from fineweb_shards.watching.screen import LineScreen


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what to build."""
    add_config_flags(parser)


def run(options: argparse.Namespace) -> None:
    """Print the plan; if a build would be refused, raise the same error after it."""
    config = dataclasses.replace(read_config(options), download=False)  # a plan needs no whole file
    job = make_job(config, commit=pinned_commit(config), observer=WaitsOnScreen(LineScreen()))
    manifest, refusal = None, None
    try:
        manifest = open_manifest(job, same_source=False)
    except ShardError as error:
        refusal = error
    if manifest is None or manifest.complete:
        plan = make_plan(job, trial_seconds=1.0)
    else:
        plan = make_plan(job, trial_seconds=1.0, start=manifest.end, done_tokens=manifest.tokens)
    held = is_locked(job.folder)
    print_result(*plan_lines(plan, verdict_on(manifest, held=held)))
    if refusal is not None and not held:
        raise refusal
    if manifest is not None and not manifest.complete:
        check_disk(plan, manifest.tokens)
