"""The command `fineweb-shards`: import the subcommand's module, parse its flags, run it, and print errors.

Only the requested subcommand's module is imported: `--help` and `status` are quick, and a worker, which imports the
main module, loads none.
"""

from __future__ import annotations

import argparse
import errno
import gc
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from fineweb_shards import __version__
from fineweb_shards.commands.arguments import CommandParser, check_subcommand
from fineweb_shards.errors import Interrupted, NoMatch, NoTrainingError, ReaderGone, ShardError, UsageError, WorkerError
from fineweb_shards.storage.local import Pipe
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.machine import check_address_space
from fineweb_shards.system.shell_commands import PROGRAM, take_typed_command
from fineweb_shards.system.signals import ignore_signals, raise_interrupts, stop_with_caller
from fineweb_shards.system.standard_streams import ignore_closed_output, prepare_streams
from fineweb_shards.watching.screen import print_error, put_json

SUBCOMMANDS = {
    "build": "make the shards, or resume an interrupted build",
    "plan": "show what a build would do, without writing anything",
    "verify": "check every shard of a folder against its manifest",
    "status": "show the progress of a run, from any terminal",
    "report": "recreate the report page of a folder",
    "export": "copy finished shards into another layout, or mix those of several folders, without tokenizing",
    "inspect": "look into shards: statistics, documents, text search",
}
MODULES = {"build": "build", "plan": "build", "inspect": "inspect"}  # all others: folders
EXAMPLES = {
    "build": (
        "build demo  # a small sample, into out/demo",
        "build sample-10BT --out shards",
        "build 'data/*.parquet' --out shards --max-tokens 1B --layout llm.c",
        "build --dataset HuggingFaceFW/fineweb-edu --name sample-10BT --out shards",
        "build corpus.txt --separator line --out s3://bucket/shards",
    ),
    "plan": ("plan sample-10BT --out shards",),
    "verify": ("verify shards",),
    "status": ("status shards",),
    "report": ("report shards --open",),
    "export": (
        "export shards --out for-llm.c --layout llm.c",
        "export --mix web=7 --mix code=3 --out mixed  # 70 % of the tokens from web",
    ),
    "inspect": ("inspect shards", "inspect shards --document 3", "inspect shards --grep photosynthesis"),
}


def main(arguments: list[str] | None = None) -> int:
    code = run_command(arguments)
    if arguments is None:
        ignore_signals()  # the exit code is decided, and Python drops its handlers before the process ends
    return code


def run_command(arguments: list[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    prepare_streams()
    typed = take_typed_command(words)
    as_json = typed.caller is not None
    try:
        if words[:1] in (["build"], ["plan"]):  # which encode
            check_address_space()
        options = parse(words)
        as_json = getattr(options, "json", False)
        if arguments is None:  # the process ends with the command
            gc.freeze()  # nothing loaded so far is garbage: scanning it takes 20 ms, and 60 at exit
            raise_interrupts()
            if typed.caller is not None:
                stop_with_caller(typed.caller)
                Pipe.has_end_mark = typed.gives_documents
        options.resume, options.for_library = typed.resume(), typed.caller is not None
        options.reads_once = typed.gives_documents
        if words[0] not in ("inspect", "plan", "status"):  # which only print
            ignore_closed_output()
        code: int | None = options.run(options)
        sys.stdout.flush()
    except Interrupted as stop:
        put_error(stop, as_json=as_json)
        if typed.caller is None:
            print(f"\n{stop.message} Everything finished is kept.", file=sys.stderr)
            print_error(f"resume with: {typed.resume()}")
        return stop.exit_code
    except (NoMatch, ReaderGone) as end:  # no message, only an exit code
        return end.exit_code
    except KeyboardInterrupt:  # in a subcommand that changes nothing, so there is nothing to resume
        return 130
    except (ShardError, MemoryError, OSError) as raised:
        error = raised if isinstance(raised, ShardError) else WorkerError("There is not enough memory.")
        if isinstance(raised, OSError):
            if raised.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            error = output_error(Path(raised.filename or "A file"), raised)
        if isinstance(error, NoTrainingError):
            command = error.flags if typed.caller is not None else f"{typed.resume()} {error.flags}"
            error.hint = f"Set how much is for validation: {command}"
        if error.hint == UsageError.hint:
            error.hint = error.hint.replace(" build ", f" {words[0]} ")
        put_error(error, as_json=as_json)
        if typed.caller is None:
            print_error(f"{PROGRAM}: {error.message}")
            if error.hint:
                print_error(f"  {error.hint}")
        return error.exit_code
    return code or 0


def put_error(error: ShardError | Interrupted, *, as_json: bool) -> None:
    """With `as_json`, print how the command ends as a line of JSON."""
    if as_json:
        name, hint = type(error).__name__, getattr(error, "hint", "")
        values = {"type": name, "exit_code": error.exit_code, "message": error.message, "hint": hint}
        put_json({"event": "error", **values})


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line; `run` in the result is the subcommand's function."""
    check_subcommand(words, SUBCOMMANDS)
    parser, subcommands = make_parsers(name for name in SUBCOMMANDS if name == words[0])
    # The subcommand's parser directly: the main one would look for its own flags among the values.
    return subcommands[words[0]].parse_args(words[1:]) if subcommands else parser.parse_args(words)


def make_parsers(names: Iterable[str]) -> tuple[CommandParser, dict[str, CommandParser]]:
    parser = CommandParser(
        prog=PROGRAM,
        description="Text to token shards for GPT trainers: exact, bounded in memory, resumable, fast.",
        epilog=f"`{PROGRAM} SUBCOMMAND --help` shows the flags of a subcommand, and examples.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(metavar="SUBCOMMAND", title="subcommands", required=True)
    subcommands = {name: subparsers.add_parser(name, help=text) for name, text in SUBCOMMANDS.items()}
    chosen = {name: subcommands[name] for name in names}
    for name, subcommand in chosen.items():
        subcommand.description = f"{SUBCOMMANDS[name][0].upper()}{SUBCOMMANDS[name][1:]}."
        subcommand.epilog = "\n".join(["examples:", *(f"  {PROGRAM} {words}" for words in EXAMPLES[name])])
        module = import_module(f"{__package__}.{MODULES.get(name, 'folders')}")
        subcommand.set_defaults(run=getattr(module, f"run_{name}"), subcommand=name)
        getattr(module, f"add_{name}_flags")(subcommand)
        if name not in ("build", "report"):  # build has a flag of its own, report prints only a path
            subcommand.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser, chosen
