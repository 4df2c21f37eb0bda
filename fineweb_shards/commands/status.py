"""`status`: show how far a run is, from any terminal. The text is made in watching/status.py."""

from __future__ import annotations

import argparse

from fineweb_shards.commands.targets import add_folder, read_named_store
from fineweb_shards.watching.status import read_status, show_status, watch_status


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and how to show its status."""
    add_folder(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="keep showing it until the run ends; wait for a build that has not begun",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def run(options: argparse.Namespace) -> int:
    """Print the status, and return the exit code for the state."""
    store = read_named_store(options)
    if options.watch:
        return watch_status(store, as_json=options.json)
    status = read_status(store)
    show_status(status, as_json=options.json)
    return status.exit_code
