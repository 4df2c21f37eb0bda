"""The command `fineweb-shards`: parses, calls, prints. Everything it does is done elsewhere."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from fineweb_shards import __version__
from fineweb_shards.commands.arguments import (
    CommandParser,
    VerbParser,
    add_config_flags,
    add_setting_flags,
    check_verb,
    read_count,
    read_text,
)
from fineweb_shards.commands.folder_verbs import add_folder_verbs
from fineweb_shards.commands.targets import read_config, read_folder
from fineweb_shards.errors import InputError, Interrupted, NoMatch, QuarantineError, ReaderGone, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.run.config import Config
from fineweb_shards.system.machine import lower_priority
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.system.standard_streams import ignore_closed_output, prepare_streams
from fineweb_shards.system.terminal import shown_on
from fineweb_shards.system.typed_command import PROGRAM, program, take_typed_command
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.screen import LineScreen, Screen, put_json


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    prepare_streams()
    typed = take_typed_command(words)
    try:
        options = parse(words)
        options.command = typed.resume("--on-finish")  # others may read where it is kept
        options.resume = typed.resume()
        code: int | None = options.run(options)
        sys.stdout.flush()
    except Interrupted as stop:
        print(f"\n{stop.message} Everything finished is kept.", file=sys.stderr)
        _say(f"resume with: {typed.resume()}")
        return stop.exit_code
    except (NoMatch, ReaderGone) as silence:
        return silence.exit_code
    except KeyboardInterrupt:  # in a verb that changes nothing: there is nothing to say
        return 130
    except ShardError as error:
        _say(f"fineweb-shards: {error.message}")
        if error.hint:
            hint = error.hint.replace(f"`{PROGRAM} ", f"`{program()} ")  # so that it can be pasted
            _say(f"  {hint}")
        return error.exit_code
    return code or 0


def parse(words: list[str]) -> argparse.Namespace:
    """The options, with `run`, the function of their verb."""
    parser = make_parser()
    verbs = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    check_verb(words, verbs.choices)
    # Straight to the verb's own parser: the first one would look for its flags among the values.
    verb: VerbParser | None = verbs.choices.get(words[0])
    return parser.parse_args(words) if verb is None else verb.parse_args(words[1:])


def add_shard_verbs(verbs: argparse._SubParsersAction[VerbParser]) -> None:
    """What is done with finished shards."""
    from fineweb_shards.commands import shard_verbs as cli_shards

    export = verbs.add_parser("export", help="copy finished shards into another layout, without tokenizing")
    export.add_argument("folder", metavar="DIR", type=read_folder, help="output folder, or its sample")
    add_setting_flags(export, cli_shards.EXPORT_SETTINGS)
    add_fresh_flags(export)
    export.set_defaults(run=cli_shards.run_export)

    inspect = verbs.add_parser("inspect", help="look into shards: figures, documents, a search")
    inspect.add_argument("path", metavar="FILE|DIR", type=Path)
    what = inspect.add_mutually_exclusive_group()
    what.add_argument("--document", metavar="N", type=read_count, help="show the N-th document, from 0")
    what.add_argument("--random", action="store_true", help="show a document chosen by chance")
    what.add_argument("--grep", metavar="TEXT", type=read_text, help="list the documents that contain TEXT")
    inspect.add_argument("--seed", metavar="N", type=read_count, help="with --random: the same one each time")
    inspect.add_argument("--json", action="store_true", help="for programs")
    inspect.set_defaults(run=cli_shards.run_inspect)

    upload = verbs.add_parser("upload", help="put finished shards into a dataset on the Hugging Face hub")
    upload.add_argument("folder", metavar="DIR", type=read_folder, help="output folder, or its sample")
    upload.add_argument("--repo", metavar="USER/NAME", required=True, help="the dataset; made if needed")
    upload.add_argument("--private", action="store_true", help="make it a private one, if it is made")
    add_setting_flags(upload, ["max_outage"])
    upload.set_defaults(run=cli_shards.run_upload)


def make_parser() -> argparse.ArgumentParser:
    """All verbs and flags. The flags of `build` and `plan` are the fields of Config."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Text to GPT-2 token shards: exact, bounded in memory, resumable, fast.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=VerbParser)

    build = verbs.add_parser("build", help="make the shards, or go on where it stopped")
    add_config_flags(build)
    add_fresh_flags(build)
    build.add_argument(
        "--same-source",
        action="store_true",
        help="the input was copied: accept other modification times when resuming",
    )
    shown = build.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="show errors and the result only")
    shown.add_argument("--json", action="store_true", help="progress and result as JSON lines, for programs")
    build.set_defaults(run=run_build)

    plan = verbs.add_parser("plan", help="show what a build would do, without writing anything")
    add_config_flags(plan)
    plan.set_defaults(run=run_plan)

    add_folder_verbs(verbs)
    add_shard_verbs(verbs)
    return parser


def add_fresh_flags(parser: argparse.ArgumentParser) -> None:
    """To start over."""
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="delete what a build has made in --out, after asking, and start over",
    )
    parser.add_argument("--yes", action="store_true", help="with --fresh: delete without asking, for scripts")


def run_build(options: argparse.Namespace) -> None:
    """Build, and tell the user's own command how it ended."""
    from fineweb_shards.run.on_finish import run_command
    from fineweb_shards.watching.bars import choose_screen

    interrupts = Interrupts(options.resume)
    ignore_closed_output()
    lower_priority()
    config = read_config(options)
    screen = interrupts.screen = choose_screen(quiet=options.quiet, as_json=options.json)
    ending: BaseException | None = None
    try:
        make_shards(config, options, screen)
    except BaseException as error:
        ending = error
        raise
    finally:
        if options.json and isinstance(ending, ShardError):
            put_json({"event": "error", "exit_code": ending.exit_code, "message": ending.message})
        if config.on_finish and config.out:
            complaint = run_command(config.on_finish, Path(os.path.expanduser(config.out)), ending)
            if complaint:
                screen.complain(complaint)


def make_shards(config: Config, options: argparse.Namespace, screen: Screen) -> None:
    # Imported here, so that `--help` is quick and a worker's import of this module light.
    from fineweb_shards.commands.build_text import summary_lines, summary_values
    from fineweb_shards.run.build import build, held_job
    from fineweb_shards.store.quarantine import FILE_NAME as QUARANTINE
    from fineweb_shards.system.durable import WORK_FOLDER

    with held_job(config, fresh=options.fresh, observer=Console(screen)) as job:
        outcome = build(
            job,
            fresh=options.fresh,
            yes=options.yes,
            same_source=options.same_source,
            screen=screen,
            command=options.command,
        )
    if options.json:
        put_json({"event": "result", **summary_values(job, outcome)})
    else:
        _show(summary_lines(job, outcome))
    if outcome.manifest.quarantined:
        raise QuarantineError(
            f"{show_number_of(len(outcome.manifest.quarantined), 'document')} could not be encoded and had "
            f"to be left out: see {job.folder / WORK_FOLDER / QUARANTINE}."
        )
    if not outcome.manifest.shards and not outcome.manifest.totals["dropped_tokens"]:
        raise InputError(
            "The input holds no document, so there is no shard.",
            "Check what --input or --dataset names, then start over with --fresh.",
        )


def run_plan(options: argparse.Namespace) -> None:
    """Show it; where a build would be refused, so is this, in the same words."""
    from fineweb_shards.run.build import open_manifest
    from fineweb_shards.run.job import make_job, pinned_commit
    from fineweb_shards.run.plan import check_disk, make_plan
    from fineweb_shards.run.plan_text import plan_lines, verdict_on
    from fineweb_shards.system.durable import is_locked

    config = dataclasses.replace(read_config(options), download=False)  # a plan needs no whole file
    job = make_job(config, commit=pinned_commit(config), observer=Console(LineScreen()))
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
    _show(plan_lines(plan, verdict_on(manifest, held=held)))
    if refusal is not None and not held:
        raise refusal
    if manifest is not None and not manifest.complete:
        check_disk(plan, manifest.tokens)


class Console(Observer):
    """Waits, on the screen, before there is a run with its own way of showing them."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def wait(self, cause: str, reason: str | None) -> None:
        self._screen.say(reason or f"the wait for the {cause} is over")


def _show(lines: list[str]) -> None:
    """The result, on standard output. File names are data too. At once: an error may come next."""
    print(shown_on(sys.stdout, "\n".join(lines)), flush=True)


def _say(line: str) -> None:
    print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)
