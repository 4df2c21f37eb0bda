"""The verbs that work on finished shards: `export`, `inspect`, `upload`. Thin, like cli.py."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from fineweb_shards.errors import NoMatch
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.system.terminal import printable, shown_on
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.screen import LineScreen

if TYPE_CHECKING:
    from fineweb_shards.reading.inspection import Target

EXPORT_SETTINGS = (
    "out", "layout", "shard_tokens", "val_tokens", "val_ratio", "val_seed", "last_shard", "verify",
)  # fmt: skip


def run_export(options: argparse.Namespace) -> None:
    from fineweb_shards.commands.main import Console
    from fineweb_shards.reading.verify import check_folder
    from fineweb_shards.run.config import load_config
    from fineweb_shards.run.export import export, export_lines, open_origin

    Interrupts(options.resume)
    ignore_closed_output()
    given = {name: getattr(options, name) for name in EXPORT_SETTINGS}
    origin = open_origin(options.folder)
    if given["shard_tokens"] is None:
        given["shard_tokens"] = origin.manifest.settings["shard_tokens"]
    config = load_config(None, given)
    screen = LineScreen()
    result = export(
        origin, config, fresh=options.fresh, yes=options.yes, say=screen.complain, observer=Console(screen)
    )
    if config.verify and result.seconds:
        check_folder(result.spec.folder, screen.complain)
    print(shown_on(sys.stdout, "\n".join(export_lines(result))))


def run_inspect(options: argparse.Namespace) -> None:
    from fineweb_shards.commands import inspect_text as inspection_text
    from fineweb_shards.reading import inspection

    target = inspection.open_target(options.path)
    if options.grep is not None:
        _run_grep(options, target)
        return
    if options.document is None and not options.random:
        found = inspection.count(target)
        if options.json:
            print(json.dumps(inspection_text.statistics_json(target, found), indent=1))
        else:
            print("\n".join(inspection_text.statistics_lines(target, found)))
        return
    number = options.document
    if number is None:
        number = inspection.choose_document(target, options.seed)
    pieces = inspection.read_document(target, number)
    first = next(pieces, "")
    if options.json:
        print(json.dumps({"document": number, "text": first + "".join(pieces)}))
        return
    print(f"document {number:,} of {printable(str(target.path))}\n")
    for piece in (first, *pieces):
        sys.stdout.write(printable(piece))
    print()


def _run_grep(options: argparse.Namespace, target: Target) -> None:
    """Like grep: a line a match as soon as it is found, and exit code 1 where there is none."""
    from fineweb_shards.commands import inspect_text as inspection_text
    from fineweb_shards.reading import inspection

    matches = 0
    for match in inspection.find_text(target, options.grep):
        matches += 1
        if options.json:
            print(json.dumps(dataclasses.asdict(match)), flush=True)
        else:
            print(inspection_text.match_line(match), flush=True)
    if not matches:
        raise NoMatch


def run_upload(options: argparse.Namespace) -> None:
    from fineweb_shards.commands.main import Console
    from fineweb_shards.reading.verify import check_folder
    from fineweb_shards.run.config import load_config
    from fineweb_shards.sources.hub.environment import check_addresses
    from fineweb_shards.sources.hub.quiet import quiet_clients
    from fineweb_shards.system.retry import Retrier

    quiet_clients()  # both before the clients are imported
    check_addresses()
    from fineweb_shards.run.upload import Uploader

    Interrupts(options.resume)
    ignore_closed_output()
    config = load_config(None, {"max_outage": options.max_outage})
    retrier = Retrier(config.max_outage)
    screen = LineScreen()
    retrier.observer = Console(screen)
    uploader = Uploader(options.repo, retrier, screen.say)
    manifest = check_folder(options.folder, screen.complain).manifest
    done = uploader.upload(options.folder, manifest, private=options.private)
    sent = f"{done.sent:,} of {show_number_of(done.files, 'file')} sent" if done.sent else "Nothing to send"
    print(f"{sent}; all are verified and at {done.url}")
