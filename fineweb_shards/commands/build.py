"""`build`: make the shards, or resume an interrupted build, print the result, and run the user's command at its end,
however it ends:

    --on-finish 'notify-send "shards: $FINEWEB_SHARDS_OUTCOME" "$FINEWEB_SHARDS_MESSAGE"'

That command finds the outcome in its environment, so nothing has to be quoted. Its own failure does not change the exit
code of the build.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fineweb_shards.commands.arguments import add_config_flags, add_fresh_flags
from fineweb_shards.commands.targets import read_config
from fineweb_shards.errors import Interrupted, QuarantineError, ShardError, exit_code_of
from fineweb_shards.report.page import closing_lines
from fineweb_shards.run.build import Outcome, build
from fineweb_shards.run.output_text import output_warnings, result_lines
from fineweb_shards.store.manifest import Manifest, load_manifest
from fineweb_shards.system.machine import apply_priority
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.system.terminal import printable
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.screen import choose_screen, print_result, put_json

_LONGEST_SECONDS = 60.0
_LONGEST_SECONDS_AFTER_INTERRUPT = 5.0  # the user wants the program to end now
# Names of the manifest's totals, and what is said of them: before the number, its noun, after it.
_NOTES = (
    ("skipped_documents", "Skipped", "document", " without a text (null)"),
    ("replaced_characters", "Replaced by U+FFFD", "invalid character", ""),
    ("bad_parts", "Left out", "damaged part", " (files, row groups or lines)"),
    ("token_count_mismatches", "Another token_count than ours", "document", "; see above"),
    ("quarantined_documents", "Left out", "document", " that could not be encoded; see below"),
    ("filtered_documents", "Left out by --where", "document", ""),
    ("unknown_documents", "Left out", "document", " without a value that --where needs"),
    ("short_documents", "Left out by --min-tokens", "document", ""),
    ("long_documents", "Left out by --max-document-tokens", "document", ""),
)


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
    """Build, and run the user's --on-finish command, however it ends."""
    interrupts = Interrupts(options.resume)
    ignore_closed_output()
    config = read_config(options)
    apply_priority(config.priority)
    screen = choose_screen(quiet=options.quiet, as_json=options.json, for_library=options.for_library)
    interrupts.wipe_sequence, interrupts.on_stop = screen.wipe_sequence, screen.say_stopping
    ending: BaseException | None = None
    try:
        outcome = build(
            config,
            screen=screen,
            command=options.command,
            fresh=options.fresh,
            yes=options.yes,
            same_source=options.same_source,
            when_done=interrupts.work_is_done,
        )
        if options.json:
            put_json({"event": "result", **summary_values(outcome)})
        else:
            print_result(*summary_lines(outcome))
        outcome.check()
    except BaseException as error:
        ending = error
        raise
    finally:
        if config.on_finish and config.out:
            failure = run_command(config.on_finish, config.folder, ending, config.bucket_url)
            if failure:
                screen.warn(failure)


def summary_lines(outcome: Outcome) -> list[str]:
    """Return the result as lines for people: where the shards are, what is in them, how to load them."""
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    if not manifest.shards:
        first = "No shard was made."
    elif run is None:
        first = "Nothing to do: all shards were made before."
    else:
        worked_seconds = outcome.seconds - run.stood_still_seconds
        speed = show_count(outcome.new_tokens / max(worked_seconds, 1e-9))
        at_speed = f", {speed} tokens/s" if outcome.new_tokens else ""
        verified = "verified, " if job.config.verify and outcome.new_shards else ""
        first = f"Done: {verified}in {show_seconds(outcome.seconds)}{at_speed}."
        if manifest.seconds > worked_seconds + 1:  # waits are in neither of the two
            first += f" All runs together: {show_seconds(manifest.seconds)} of work."
    peak = show_bytes(manifest.peak_memory_bytes)
    memory = f"{'memory':<10} {peak} at most, all processes together"
    notes = [
        f"{what}: {show_number_of(count, noun)}{more}."
        for name, what, noun, more in _NOTES
        if (count := manifest.totals.get(name))
    ]
    if not manifest.shards and manifest.quarantined:
        notes.append("No other document was in the input, so there is no shard.")
    facts = [memory] if manifest.peak_memory_bytes else []  # 0 if it could not be measured
    closing = closing_lines(job.output.store, run) if run else []
    return [first, *result_lines(job.output, manifest, facts=facts, notes=notes, closing=closing)]


def summary_values(outcome: Outcome) -> dict[str, Any]:
    """Return the result as values for JSON."""
    job, manifest, run = outcome.job, outcome.manifest, outcome.run
    return {
        "folder": job.output.store.location,
        "shards": manifest.shard_count,
        "bytes": sum(shard.bytes for shard in manifest.shards),
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


def run_command(command: str, folder: Path, error: BaseException | None, location: str | None = None) -> str | None:
    """Run the command with the outcome in FINEWEB_SHARDS_…; return a message if the command failed. `location` is where
    the shards are, if it is not the folder."""
    longest = _LONGEST_SECONDS_AFTER_INTERRUPT if isinstance(error, Interrupted) else _LONGEST_SECONDS
    environment = {**os.environ, **describe_outcome(folder, error, location)}
    try:
        done = subprocess.run(
            command, shell=True, env=environment, timeout=longest, check=False,
            stdin=subprocess.DEVNULL, stdout=sys.stderr,  # standard output is for the result, or for --json
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"--on-finish: the command was stopped after {longest:.0f} s"
    except OSError as failure:
        return f"--on-finish: {failure.strerror}"
    return f"--on-finish: the command ended with exit code {done.returncode}" if done.returncode else None


def describe_outcome(folder: Path, error: BaseException | None, location: str | None = None) -> dict[str, str]:
    """Return the environment variables that describe how the build ended."""
    manifest: Manifest | None = None
    with contextlib.suppress(ShardError):  # an unreadable one may be the very reason why the build failed
        manifest = load_manifest(folder)
    outcome = "interrupted" if isinstance(error, Interrupted) else "failed"
    if error is None or isinstance(error, QuarantineError):
        outcome = "complete"
    values = {
        "OUTCOME": outcome,
        "EXIT_CODE": str(exit_code_of(error)),
        "MESSAGE": printable(str(error)) if error is not None else "The shards are complete.",
        "FOLDER": location or str(folder),
        "SHARDS": str(manifest.shard_count if manifest else 0),
        "TOKENS": str(manifest.tokens if manifest else 0),
        "DOCUMENTS": str(manifest.documents if manifest else 0),
        "QUARANTINED": str(len(manifest.quarantined) if manifest else 0),
        "SECONDS": str(round(manifest.seconds if manifest else 0)),
    }
    return {f"FINEWEB_SHARDS_{name}": value for name, value in values.items()}
