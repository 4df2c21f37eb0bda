"""The command `fineweb-shards`: parses, calls, prints. Everything it does is done elsewhere."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fineweb_shards import __version__
from fineweb_shards.cli_folder import add_folder_verbs
from fineweb_shards.config import Config, load_config, parse_value
from fineweb_shards.errors import Interrupted, NoMatch, QuarantineError, ShardError, UsageError
from fineweb_shards.machine import be_nice
from fineweb_shards.observer import Observer
from fineweb_shards.screen import Lines, Screen, put_json
from fineweb_shards.terminal import printable
from fineweb_shards.units import parse_count


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = make_parser().parse_args(words)
        options.command = resume_command(words, "--on-finish")  # others may read where it is kept
        code: int | None = options.run(options)
    except Interrupted as stop:
        print(f"\n{stop.message} Everything finished is kept.", file=sys.stderr)
        _say(f"resume with: {resume_command(words)}")
        return stop.exit_code
    except NoMatch as nothing:
        return nothing.exit_code
    except ShardError as error:
        print(f"fineweb-shards: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  {printable(error.hint)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `fineweb-shards … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code or 0


def resume_command(words: list[str], secret_flag: str | None = None) -> str:
    """The command that goes on where this one stopped: not with --fresh, and without a flag whose value
    may be a secret."""
    kept: list[str] = []
    skip_value = False
    for word in words:
        if (
            not skip_value
            and word not in ("--fresh", "--yes")
            and not (secret_flag and word.startswith(secret_flag))
        ):
            kept.append(word)
        skip_value = word == secret_flag
    return f"fineweb-shards {shlex.join(kept)}"


class _Parser(argparse.ArgumentParser):
    """argparse, with our own way of telling a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", f"See `{self.prog} --help`.")


def add_shard_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    """What is done with finished shards."""
    from fineweb_shards import cli_shards

    export = verbs.add_parser("export", help="copy finished shards into another layout, without tokenizing")
    export.add_argument("folder", metavar="DIR", type=Path)
    add_setting_flags(export, cli_shards.EXPORT_SETTINGS)
    add_fresh_flags(export)
    export.set_defaults(run=cli_shards.run_export)

    inspect = verbs.add_parser("inspect", help="look into shards: figures, documents, a search")
    inspect.add_argument("path", metavar="FILE|DIR", type=Path)
    what = inspect.add_mutually_exclusive_group()
    what.add_argument("--document", metavar="N", type=_count, help="show the N-th document, from 0")
    what.add_argument("--random", action="store_true", help="show a document chosen by chance")
    what.add_argument("--grep", metavar="TEXT", type=_text, help="list the documents that contain TEXT")
    inspect.add_argument("--seed", metavar="N", type=_count, help="with --random: the same one each time")
    inspect.add_argument("--json", action="store_true", help="for programs")
    inspect.set_defaults(run=cli_shards.run_inspect)

    upload = verbs.add_parser("upload", help="put finished shards into a dataset on the Hugging Face hub")
    upload.add_argument("folder", metavar="DIR", type=Path)
    upload.add_argument("--repo", metavar="USER/NAME", required=True, help="the dataset; made if needed")
    upload.add_argument("--private", action="store_true", help="make it a private one, if it is made")
    add_setting_flags(upload, ["max_outage"])
    upload.set_defaults(run=cli_shards.run_upload)


def make_parser() -> argparse.ArgumentParser:
    """All verbs and flags. The flags of `build` and `plan` are the fields of Config."""
    parser = _Parser(
        prog="fineweb-shards",
        description="Text to GPT-2 token shards: exact, bounded in memory, resumable, fast.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

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


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """--config, and a flag for every field of Config."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file; flags override it")
    add_setting_flags(parser, [field.name for field in dataclasses.fields(Config)])


def add_setting_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """A flag for each of these fields of Config."""
    for field in (field for field in dataclasses.fields(Config) if field.name in names):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(
                flag,
                action=argparse.BooleanOptionalAction,
                default=None,
                help=field.metadata["help"],
            )
            continue
        default = field.default if field.default not in ((), None, "") else None
        shown = f"{default:,}" if isinstance(default, int) and default else default
        text = field.metadata["help"] + (f" (default: {shown})" if default is not None else "")
        choices = field.metadata["choices"]
        parser.add_argument(
            flag,
            action="append" if field.name == "input" else "store",
            type=_reader(field),
            metavar=field.metadata["metavar"] or "{" + ",".join(choices) + "}",
            help=text.replace("%", "%%"),
        )


def _reader(field: dataclasses.Field[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse_value(field, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("there is nothing to look for")
    return text


def _config_of(options: argparse.Namespace) -> Config:
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    if given["input"] is not None:
        given["input"] = tuple(given["input"])
    return load_config(options.config, given)


def run_build(options: argparse.Namespace) -> None:
    """Build, and tell the user's own command how it ended."""
    from fineweb_shards.bars import choose_screen
    from fineweb_shards.farewell import run_command

    catch_signals()
    be_nice()
    config = _config_of(options)
    screen = choose_screen(quiet=options.quiet, as_json=options.json)
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
            complaint = run_command(config.on_finish, Path(config.out).expanduser(), ending)
            if complaint:
                screen.complain(complaint)


def make_shards(config: Config, options: argparse.Namespace, screen: Screen) -> None:
    # Imported here, so that `--help` is quick and a worker's import of this module light.
    from fineweb_shards.build import build
    from fineweb_shards.durable import WORK_FOLDER
    from fineweb_shards.job import make_job, pinned_commit
    from fineweb_shards.quarantine import FILE_NAME as QUARANTINE
    from fineweb_shards.summary import summary_lines, summary_values

    commit = None if options.fresh else pinned_commit(config)
    job = make_job(config, commit=commit, observer=Console(screen))
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
            f"{len(outcome.manifest.quarantined):,} documents could not be encoded and were left out; "
            f"they are named in {job.folder / WORK_FOLDER / QUARANTINE}."
        )


def run_plan(options: argparse.Namespace) -> None:
    from fineweb_shards.job import make_job, pinned_commit
    from fineweb_shards.plan import make_plan
    from fineweb_shards.plan_text import plan_lines

    config = dataclasses.replace(_config_of(options), download=False)  # a plan needs no whole file
    job = make_job(config, commit=pinned_commit(config), observer=Console(Lines()))
    _show(plan_lines(make_plan(job, trial_seconds=1.0)))


def catch_signals() -> None:
    """Ctrl-C and SIGTERM end the run cleanly; a second one ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: os._exit(128 + number))
        raise Interrupted("Interrupted.", 128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


class Console(Observer):
    """Waits, on the screen, before there is a run with its own way of showing them."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def wait(self, cause: str, reason: str | None) -> None:
        self._screen.say(reason or f"the wait for the {cause} is over")


def _show(lines: list[str]) -> None:
    """The result, on standard output. File names are data too."""
    print(printable("\n".join(lines)))


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
