"""`build`: make the shards, or resume an interrupted build, and print the result."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from fineweb_shards.commands.arguments import add_config_flags, add_fresh_flags
from fineweb_shards.commands.targets import read_config
from fineweb_shards.report.contents import LEFT_OUT
from fineweb_shards.report.page import closing_lines
from fineweb_shards.run.build import Outcome, build
from fineweb_shards.run.output_text import output_warnings, result_lines
from fineweb_shards.system.machine import apply_priority
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.screen import choose_screen, print_result, put_json
from fineweb_shards.watching.shares import shares_in


def add_build_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, and those of this subcommand alone."""
    add_config_flags(parser)
    add_fresh_flags(parser)
    parser.add_argument(
        "--same-source",
        action="store_true",
        help="the input was copied: accept other modification times and ETags when resuming",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="show errors and the result only")
    shown.add_argument("--json", action="store_true", help="progress and result as JSON lines, for programs")


def run_build(options: argparse.Namespace) -> None:
    """Build, and print the result."""
    interrupts = Interrupts(options.resume)
    ignore_closed_output()
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
    """Return the result as lines for people: where the shards are, what is in them, how to load them."""
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    peak = show_bytes(manifest.peak_memory_bytes)
    memory = f"{'memory':<10} {peak} at most, all processes together"
    notes = [
        f"{what}: {show_number_of(count, noun)}{more}."
        for name, what, noun, more in LEFT_OUT
        if (count := manifest.totals.get(name))
    ]
    if not manifest.shards and manifest.quarantined:
        notes.append("No other document was in the input, so there is no shard.")
    facts = [memory] if manifest.peak_memory_bytes else []  # 0 if it could not be measured
    closing = closing_lines(job.output.store, run) if run else []
    return [result_line(outcome), *result_lines(job.output, manifest, facts=facts, notes=notes, closing=closing)]


def result_line(outcome: Outcome) -> str:
    """Return in a sentence what the run has done."""
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    if not manifest.shards:
        return "No shard was made."
    if run is None:
        return "Nothing to do: all shards were made before."
    worked_seconds = outcome.seconds - run.stood_still_seconds
    speed = show_count(outcome.new_tokens / max(worked_seconds, 1e-9))
    # What a run has made of a shuffle that was begun before is only a part of the work.
    is_part = manifest.is_shuffled and run.first_tokens > 0
    at_speed = f", {speed} tokens/s" if outcome.new_tokens and not is_part else ""
    verified = "verified, " if job.config.verify and outcome.new_shards else ""
    done = f"Done: {verified}in {show_seconds(outcome.seconds)}{at_speed}."
    if manifest.seconds <= worked_seconds + 1:  # waits are in neither of the two
        return done
    return f"{done} All runs together: {show_seconds(manifest.seconds)} of work."


def summary_values(outcome: Outcome) -> dict[str, Any]:
    """Return the result as values for JSON."""
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    return {
        "folder": job.output.store.location,
        "shards": manifest.shard_count,
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "parts": [asdict(part) for part in shares_in(manifest)],
        **{name: value for name, value in manifest.totals.items() if name != "shards"},
        "new_shards": outcome.new_shards,
        "new_tokens": outcome.new_tokens,
        "seconds": round(outcome.seconds, 3),
        "waited_seconds": round(run.stood_still_seconds, 3) if run else 0.0,
        "waits": {cause: asdict(waited) for cause, waited in run.waited.items()} if run else {},
        "fetched_bytes": run.fetched_bytes if run else 0,
        "verified": job.config.verify and outcome.new_shards > 0,
        "quarantined": len(manifest.quarantined),
        "peak_memory_bytes": manifest.peak_memory_bytes,
        "warnings": output_warnings(job.output, manifest),
    }
