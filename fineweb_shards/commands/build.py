"""`build`: make the shards, or resume an interrupted build, and print the result. `plan`: print what it would do."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import Any

from fineweb_shards.commands.arguments import add_config_flags, add_fresh_flags, read_config
from fineweb_shards.errors import ShardError
from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.output.opening import open_store_to_read
from fineweb_shards.report.contents import LEFT_OUT
from fineweb_shards.report.page import closing_lines
from fineweb_shards.run.build import Outcome, build
from fineweb_shards.run.estimate import document_rows
from fineweb_shards.run.job import make_job, open_manifest
from fineweb_shards.run.output_text import output_warnings, result_lines
from fineweb_shards.run.plan import Plan, make_plan, split_error
from fineweb_shards.run.plan_text import plan_rows, plan_warnings, resume_text
from fineweb_shards.run.resources import check_needs
from fineweb_shards.run.shuffle import find_piles
from fineweb_shards.system.machine import apply_priority
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.mix_shares import shares_in
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen, choose_screen, print_result, put_json

# How long `plan` waits for the network by default. With a connection's own timeout it stays below a minute.
_OUTAGE_SECONDS = 20


def add_build_flags(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    add_fresh_flags(parser)
    text = "the input was copied: accept other modification times and ETags when resuming"
    parser.add_argument("--same-source", action="store_true", help=text)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="show errors and the result only")
    shown.add_argument("--json", action="store_true", help="progress and result as JSON lines, for programs")


def run_build(options: argparse.Namespace) -> None:
    interrupts = Interrupts(options.resume)
    config = read_config(options)
    apply_priority(config.priority)
    screen = choose_screen(quiet=options.quiet, as_json=options.json, for_library=options.for_library)
    interrupts.wipe_sequence, interrupts.on_stop = screen.wipe_sequence, screen.say_stopping
    outcome = build(
        config,
        screen=screen,
        command=options.resume,
        fresh=options.fresh,
        yes=options.yes,
        same_source=options.same_source,
        reads_once=options.reads_once,
        when_done=interrupts.work_is_done,
    )
    if options.json:
        if outcome.run is None:
            screen.say(result_line(outcome))
        put_json({"event": "result", **summary_values(outcome)})
    else:
        print_result(*summary_lines(outcome))
    outcome.check()


def summary_lines(outcome: Outcome) -> list[str]:
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    memory = f"{'memory':<10} peak {show_bytes(manifest.peak_memory_bytes)}, all processes together"
    notes = [
        f"{what}: {show_number_of(count, noun)}{more}."
        for name, what, noun, more in LEFT_OUT
        if (count := manifest.totals.get(name))
    ]
    if not manifest.shards and manifest.quarantined:
        notes.append("The input has no other documents, so no shards were made.")
    facts = [memory] if manifest.peak_memory_bytes else []  # 0 if it could not be measured
    closing = closing_lines(job.output.store, run) if run else []
    return [result_line(outcome), *result_lines(job.output, manifest, facts=facts, notes=notes, closing=closing)]


def result_line(outcome: Outcome) -> str:
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    if not manifest.shards:
        return "No shards were made."
    if run is None:
        return "Nothing to do: all shards exist already."
    worked_seconds = outcome.seconds - run.stood_still_seconds
    speed = show_count(outcome.new_tokens / max(worked_seconds, 1e-9))
    # A run that resumes a shuffle did only part of the work for its tokens.
    is_part = manifest.is_shuffled and run.first_tokens > 0
    at_speed = f", {speed} tokens/s" if outcome.new_tokens and not is_part else ""
    done = "Done and verified" if job.config.verify and outcome.new_shards else "Done"
    done = f"{done} in {show_seconds(outcome.seconds)}{at_speed}."
    if manifest.seconds <= worked_seconds + 1:  # neither includes waits
        return done
    return f"{done} All runs together: {show_seconds(manifest.seconds)} of work."


def summary_values(outcome: Outcome) -> dict[str, Any]:
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    return {
        "folder": job.output.store.location,
        "shards": manifest.shard_count,
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "parts": [dataclasses.asdict(part) for part in shares_in(manifest)],
        **{name: value for name, value in manifest.totals.items() if name != "shards"},
        "new_shards": outcome.new_shards,
        "new_tokens": outcome.new_tokens,
        "seconds": round(outcome.seconds, 3),
        "waited_seconds": round(run.stood_still_seconds, 3) if run else 0.0,
        "waits": {cause: dataclasses.asdict(waited) for cause, waited in run.waited.items()} if run else {},
        "fetched_bytes": run.fetched_bytes if run else 0,
        "verified": job.config.verify and outcome.new_shards > 0,
        "quarantined": len(manifest.quarantined),
        "peak_memory_bytes": manifest.peak_memory_bytes,
        "warnings": output_warnings(job.output, manifest),
    }


add_plan_flags = add_config_flags


def run_plan(options: argparse.Namespace) -> None:
    """Print the plan; then, if a build would be refused, raise its error."""
    config = dataclasses.replace(read_config(options), download=False)  # a plan needs no whole file
    if options.max_outage is None:
        config = dataclasses.replace(config, max_outage=min(config.max_outage, _OUTAGE_SECONDS))
    has_out = bool(config.out)
    if not has_out:  # propose an unused name
        names = chain(("shards",), (f"shards-{number}" for number in count(2)))
        config = dataclasses.replace(config, out=next(name for name in names if not os.path.lexists(name)))
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
            manifest = find_piles(job.output, config, manifest, observer, fetches_list=False)
    except ShardError as error:
        manifest, refusal = None, error
    begins = manifest is not None and not manifest.complete
    rest: dict[str, Any] = {}
    if manifest and begins:
        rest = {"start": manifest.input_end, "done_tokens": manifest.tokens, "piles": manifest.piles}
    with tempfile.TemporaryDirectory() as scratch:
        plan = make_plan(job.with_engine(Path(scratch)), trial_seconds=1.0, **rest)
    if begins and (refusal := split_error(plan)):
        manifest, begins = None, False
    verdict = verdict_on(manifest, held=held)
    lines = plan_lines(plan, verdict + ("" if has_out else f"; choose the folder with --out {config.out}"))
    if options.json and (held or refusal is None):
        put_json({"event": "result", **plan_values(plan), "verdict": verdict, "text": "\n".join(lines)})
    elif not options.json:
        print_result(*lines)
    if refusal is not None and not held:
        raise refusal
    if begins:
        check_needs(plan.disk_needs, plan.job.output, exact=plan.extent.exact)


def plan_lines(plan: Plan, verdict: str = "") -> list[str]:
    rows = plan_rows(plan)
    if plan.job.config.executor == "ray":
        rows = [row for row in rows if row[0] != "machine"]  # which is this machine
        rows.append(("time", "depends on the cluster: docs/cluster.md has a table"))
    elif plan.tokens_per_second and plan.seconds:
        speed, passes = f"{show_count(plan.tokens_per_second)} tokens/s", ""
        if plan.piles is not None:
            passes = " for the second pass" if plan.piles.ended else " for both passes"
        rows.append(("time", f"{show_seconds(plan.seconds)}{passes} ({speed}, estimated from a one-second trial)"))
    if verdict:
        rows.append(("build", verdict))
    rows += plan.separator_rows or document_rows(plan.first_documents)
    rows += [("WARNING", warning) for warning in plan_warnings(plan)]
    return [f"{name:<10} {text}" for name, text in rows]


def plan_values(plan: Plan) -> dict[str, Any]:
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
        return "a build is running in this folder; a second one would be refused (exit code 6)"
    if manifest is None:
        return "would be refused; the reason is below"
    if manifest.complete:
        return f"nothing to do: complete, {manifest.tokens:,} tokens"
    after = resume_text(manifest)
    return f"would resume {after}" if after else "would start from the beginning"
