"""`report`: write the HTML report about a folder again.

The report about a folder in a bucket is written where a build on this machine has it, in the scratch folder
of that address. Nothing in the bucket is changed, so that the right to read is enough.
"""

from __future__ import annotations

import argparse
import webbrowser

from fineweb_shards.commands.targets import add_folder, read_named_store
from fineweb_shards.report.facts import report_path
from fineweb_shards.report.page import write_report
from fineweb_shards.store.opening import scratch_folder
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.system.terminal import printable
from fineweb_shards.watching.screen import LineScreen


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and the flag to open the report."""
    parser.description = (
        "Writes DIR/.fineweb-shards/report.html and prints the path. About a folder in a bucket it is\n"
        "written into the user's cache folder on this machine; nothing in the bucket is changed."
    )
    add_folder(parser)
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    ignore_closed_output()
    store = read_named_store(options)
    path = report_path(scratch_folder(store.location, "")) if store.is_remote else None
    path = write_report(store, path=path)
    print(printable(str(path)))
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        LineScreen().warn("No browser was found here: open the file named above.")
