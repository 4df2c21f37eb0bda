"""`export`: copy finished shards into another layout, without tokenizing."""

from __future__ import annotations

import argparse

from fineweb_shards.commands.arguments import add_fresh_flags, add_setting_flags
from fineweb_shards.commands.targets import read_store
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.run.config import load_config
from fineweb_shards.run.export import Exported, export, open_export_source
from fineweb_shards.run.output_text import (
    content_lines,
    output_notes,
    output_warnings,
    training_lines,
    warning_lines,
)
from fineweb_shards.stream.split import VAL_SETTINGS
from fineweb_shards.system.standard_streams import Interrupts, ignore_closed_output
from fineweb_shards.units import show_bytes, show_seconds
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen, print_result

SETTINGS = (
    "out", "layout", "shard_tokens", *VAL_SETTINGS, "val_seed", "last_shard", "gpus", "index", "verify",
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder to export from, and a flag for every setting of the output."""
    parser.add_argument("folder", metavar="DIR", type=read_store, help="output folder, or its sample")
    add_setting_flags(parser, SETTINGS)
    add_fresh_flags(parser)


def run(options: argparse.Namespace) -> None:
    """Export, verify, and print the result."""
    interrupts = Interrupts(options.resume)
    ignore_closed_output()
    given = {name: getattr(options, name) for name in SETTINGS}
    source = open_export_source(options.folder)
    config = load_config(None, given)
    screen = LineScreen()
    interrupts.on_stop = screen.say_stopping
    observer = WaitsOnScreen(screen)
    result = export(source, config, fresh=options.fresh, yes=options.yes, say=screen.warn, observer=observer)
    if config.verify and result.seconds:
        check_folder(result.spec.store, screen.warn)
    interrupts.work_is_done()
    print_result(*export_lines(result))


def export_lines(result: Exported) -> list[str]:
    """Return the result as lines for people."""
    if not result.seconds:
        first = "Nothing to do: the export was made before."
    else:
        speed = show_bytes(result.spec.shard_format.size_bytes(result.new_tokens) / max(result.seconds, 1e-9))
        first = f"Done: in {show_seconds(result.seconds)}, {speed}/s."
    notes = [f"{'note':<10} {note}" for note in output_notes(result.spec, result.manifest)]
    return [
        first,
        *content_lines(result.spec, result.manifest),
        *notes,
        *training_lines(result.spec, result.manifest),
        *warning_lines(output_warnings(result.spec, result.manifest)),
    ]
