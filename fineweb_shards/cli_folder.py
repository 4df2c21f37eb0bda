"""The verbs that look at an output folder: `verify`, `status`, `report`. Thin, like cli.py."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fineweb_shards.cli_target import folder_of_config, read_folder
from fineweb_shards.errors import UsageError
from fineweb_shards.screen import Lines
from fineweb_shards.streams import tolerate_onlookers
from fineweb_shards.terminal import printable, shown_on
from fineweb_shards.typed_command import PROGRAM
from fineweb_shards.units import show_number_of


def add_folder_verbs(verbs: argparse._SubParsersAction[Any]) -> None:
    """Their flags."""
    verify = verbs.add_parser("verify", help="check every shard of a folder against its manifest")
    _add_folder(verify)
    verify.set_defaults(run=run_verify)

    status = verbs.add_parser("status", help="show how far a run is, from any terminal")
    _add_folder(status)
    status.add_argument("--watch", action="store_true", help="keep showing it until the run ends")
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=run_status)

    report = verbs.add_parser("report", help="make the page about a folder again")
    _add_folder(report)
    report.add_argument("--open", action="store_true", help="show it in the browser")
    report.set_defaults(run=run_report)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    """An output folder: by its name, or by the config it was built with."""
    parser.set_defaults(verb=parser.prog.split()[-1])
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=read_folder,
        nargs="?",
        help="output folder of a build, or the sample or TOML file that it was built with",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file or sample that names it, instead of DIR")


def _folder_of(options: argparse.Namespace) -> Path:
    folder: Path | None = options.folder
    if (folder is None) == (options.config is None):
        raise UsageError("Name one folder: DIR, or --config FILE with the config it was built with.",
                         f"For example: `{PROGRAM} {options.verb} out/demo`")  # fmt: skip
    return folder_of_config(options.config) if folder is None else folder


def run_verify(options: argparse.Namespace) -> None:
    from fineweb_shards.verify import check_folder

    tolerate_onlookers()
    folder = _folder_of(options)
    verdict = check_folder(folder, Lines().complain)
    manifest = verdict.manifest
    for name in verdict.unfinished:
        again = f"{name}: not finished when the run was stopped; the next build makes it again."
        print(shown_on(sys.stdout, again))
    state = "complete" if manifest.complete else "so far: the build is not finished; run its command again"
    count = show_number_of(len({shard.name for shard in manifest.shards}), "shard")
    print(shown_on(sys.stdout, f"{folder}: {count}, {manifest.tokens:,} tokens verified, {state}."))


def run_status(options: argparse.Namespace) -> int:
    """Show it; the exit code tells the state."""
    from fineweb_shards.status import read_status, show_status
    from fineweb_shards.watch import watch_status

    folder = _folder_of(options)
    if options.watch:
        return watch_status(folder, as_json=options.json)
    status = read_status(folder)
    show_status(status, as_json=options.json)
    return status.exit_code


def run_report(options: argparse.Namespace) -> None:
    from fineweb_shards.report.page import write_report

    tolerate_onlookers()
    path = write_report(_folder_of(options))
    print(printable(str(path)))
    if options.open:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            Lines().complain("No browser was found here: open the file named above.")
