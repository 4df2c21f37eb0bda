"""`plan`: show what a build would do, without writing anything."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import Any

from fineweb_shards.commands.arguments import add_config_flags
from fineweb_shards.commands.targets import read_config
from fineweb_shards.errors import ShardError
from fineweb_shards.run.extent import document_rows
from fineweb_shards.run.job import make_job, open_manifest
from fineweb_shards.run.plan import Plan, check_disk, make_plan, split_error
from fineweb_shards.run.plan_text import mix_rows, plan_warnings, resume_text, short_rows, show_estimate
from fineweb_shards.run.shuffle import find_piles
from fineweb_shards.store.manifest import Manifest, load_manifest
from fineweb_shards.store.opening import open_store_to_read
from fineweb_shards.units import show_count, show_seconds
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen, print_result, put_json

# How long to wait for the network, if the command does not say: a person is waiting. With the time until a connection
# is given up it stays below a minute.
_OUTAGE_SECONDS = 20


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what to build."""
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def run_plan(options: argparse.Namespace) -> None:
    """Print the plan; if a build would be refused, raise the same error after it."""
    config = dataclasses.replace(read_config(options), download=False)  # a plan needs no whole file
    if options.max_outage is None:
        config = dataclasses.replace(config, max_outage=min(config.max_outage, _OUTAGE_SECONDS))
    has_out = bool(config.out)
    if not has_out:  # propose the name of a folder that is not there
        names = chain(("shards",), (f"shards-{number}" for number in count(2)))
        free = next(name for name in names if not os.path.lexists(name))
        config = dataclasses.replace(config, out=free)
    config.check()
    observer = WaitsOnScreen(LineScreen())
    store = open_store_to_read(config.out, observer, config.max_outage)
    begun = load_manifest(store.folder)
    job = make_job(config, store, begun=begun, observer=observer)
    manifest: Manifest | None = None
    refusal: ShardError | None = None
    held = store.is_locked()
    try:
        manifest = open_manifest(job, same_source=False)
        if not manifest.complete and not held:
            manifest = find_piles(job.output, config, manifest, observer)
    except ShardError as error:
        manifest, refusal = None, error
    begins = manifest is not None and not manifest.complete
    rest: dict[str, Any] = {}
    if manifest and begins:
        rest = {"start": manifest.input_end, "done_tokens": manifest.tokens, "piles": manifest.piles}
    with tempfile.TemporaryDirectory() as scratch:
        tried = job.with_engine(Path(scratch))
        plan = make_plan(tried, trial_seconds=1.0, **rest)
    if begins and (refusal := split_error(plan)):
        manifest, begins = None, False
    proposal = "" if has_out else f"; name the folder: --out {config.out}"
    verdict = verdict_on(manifest, held=held)
    lines = plan_lines(plan, verdict + proposal)
    if options.json and (held or refusal is None):
        put_json({"event": "result", **plan_values(plan), "verdict": verdict, "text": "\n".join(lines)})
    elif not options.json:
        print_result(*lines)
    if refusal is not None and not held:
        raise refusal
    if begins:
        check_disk(plan)


def plan_lines(plan: Plan, verdict: str = "") -> list[str]:
    """Return the whole plan, for `plan`; the `verdict` says what a build would do in this folder."""
    config, extent = plan.job.config, plan.extent
    rows = short_rows(plan)
    before_tokens = next(number for number, (name, _) in enumerate(rows) if name == "tokens")
    documents = show_estimate(extent.documents, exact=extent.documents_exact)
    rows.insert(before_tokens, ("documents", documents))
    if config.mix:
        after_mix = 1 + next(number for number, (name, _) in enumerate(rows) if name == "mix")
        rows[after_mix:after_mix] = mix_rows(plan)
    if config.executor == "ray":
        rows = [row for row in rows if row[0] != "machine"]  # this one
        rows.append(("time", "depends on the cluster: docs/cluster.md has a table"))
    elif plan.tokens_per_second and plan.seconds:
        speed, passes = f"{show_count(plan.tokens_per_second)} tokens/s", ""
        if plan.piles is not None:
            speed += " in the first pass"
            passes = " for the second pass" if plan.piles.ended else " for both passes"
        duration = f"{show_seconds(plan.seconds)}{passes}"
        rows.append(("time", f"{duration} ({speed}, an estimate from a trial of one second)"))
    if verdict:
        rows.append(("build", verdict))
    rows += plan.separator_rows or document_rows(plan.first_documents)
    if config.input and any(file.is_pipe for file in plan.job.source.files):
        rows.append(("", "(standard input can only be read once: only its beginning is looked at)"))
    rows += [("WARNING", warning) for warning in plan_warnings(plan)]
    return [f"{name:<10} {text}" for name, text in rows]


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return the plan as values for JSON."""
    extent, config, forecast = plan.extent, plan.job.config, plan.forecast
    return {
        "folder": plan.job.output.store.location,
        "tokens": extent.tokens,
        "tokens_exact": extent.exact,
        "documents": extent.documents,
        "documents_exact": extent.documents_exact,
        "shards": plan.shards,
        "bytes": plan.output_bytes,
        "fetched_bytes": plan.bytes_to_fetch if plan.job.is_remote else 0,
        "done_tokens": plan.done_tokens,
        "tokens_per_second": plan.tokens_per_second,
        "seconds": plan.seconds,
        "parts": [
            {
                "weight": own.weight,
                "epochs": own.epochs,
                "available_tokens": forecast.available[number],
                "tokens": forecast.taken[number],
                "share": forecast.shares()[number],
                "ends_after_tokens": forecast.ends[number],
            }
            for number, own in enumerate(config.part_configs)
        ],
        "warnings": plan_warnings(plan),
    }


def verdict_on(manifest: Manifest | None, *, held: bool) -> str:
    """Say what a build would do in a folder with this manifest (None: refused); `held`: a run is active."""
    if held:
        return "a run is at work in this folder: another one would be refused (exit code 6)"
    if manifest is None:
        return "would be refused, for the reason in the last lines"
    if manifest.complete:
        return f"nothing to do: complete, {manifest.tokens:,} tokens"
    if manifest.is_shuffled and (after := resume_text(manifest)):
        return f"would resume {after}"
    if manifest.shards:
        return f"would resume after {manifest.shards[-1].name}, {manifest.tokens:,} tokens are done"
    return "would begin"
