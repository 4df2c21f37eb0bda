"""The subcommands about the folder of a build: `verify`, `status`, `report` and `export`.

What they do is in other packages (reading, watching, report, run); here are their flags and their output.
"""

from __future__ import annotations

import argparse
import webbrowser
from typing import Any

from fineweb_shards.commands.arguments import add_fresh_flags, add_setting_flags, as_argument
from fineweb_shards.commands.targets import read_store
from fineweb_shards.errors import UsageError
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.report.facts import report_path
from fineweb_shards.report.page import write_report
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config, parse_mixed
from fineweb_shards.run.output_text import output_warnings, result_lines
from fineweb_shards.store.opening import require_manifest, scratch_folder
from fineweb_shards.store.store import Store
from fineweb_shards.stream.split import VAL_SETTINGS
from fineweb_shards.system.signals import Interrupts
from fineweb_shards.system.standard_streams import ignore_closed_output
from fineweb_shards.system.terminal import printable
from fineweb_shards.units import show_bytes, show_number_of, show_seconds
from fineweb_shards.watching.run_files import State
from fineweb_shards.watching.screen import (
    JsonScreen,
    LineScreen,
    Screen,
    TokensOnScreen,
    WaitsOnScreen,
    print_result,
    put_json,
)
from fineweb_shards.watching.status import folder_values, read_status, show_status, watch_status

EXPORT_SETTINGS = (
    "out", "layout", "shard_tokens", *VAL_SETTINGS, "val_seed", "last_shard", "gpus", "index", "verify",
    "mix_until", "max_tokens", "shuffle", "scratch",
)  # fmt: skip


def add_folder(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument that names an output folder: by its path, or by the config it was built with."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs=nargs,
        type=read_store,
        help="output folder of a build (also s3://…), or the sample or TOML file that it was built with",
    )


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def add_verify_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder to verify."""
    add_folder(parser)
    add_json_flag(parser)


def run_verify(options: argparse.Namespace) -> None:
    """Check all shards, print the damaged ones, and print how much was checked."""
    ignore_closed_output()
    store: Store = options.folder
    with _progress_of(options) as progress:
        progress.begin(State.VERIFYING, require_manifest(store).tokens)
        verdict = check_folder(store, LineScreen().warn, lambda record: progress.add(record.tokens))
    manifest = verdict.manifest
    if options.json:
        counts = {"shards": manifest.shard_count, "tokens": manifest.tokens, "complete": manifest.complete}
        put_json({"event": "result", "folder": store.location, **counts, "unfinished": verdict.unfinished})
        return
    alive = store.is_locked()
    if names := verdict.unfinished:
        which = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names):,} files)"
        stopped = "when the run was stopped; the next build makes it again"
        why = "yet; the build that is at work makes it" if alive else stopped
        print_result(f"{which}: not finished {why}.")
    next_step = "a build is at work here" if alive else "the build is not finished; run its command again"
    state = "complete" if manifest.complete else f"so far: {next_step}"
    count = show_number_of(manifest.shard_count, "shard")
    print_result(f"{store.location}: {count}, {manifest.tokens:,} tokens verified, {state}.")


def _progress_of(options: argparse.Namespace) -> TokensOnScreen:
    """Return what shows how far it is: for the library only."""
    return TokensOnScreen(JsonScreen(1.0) if options.for_library else Screen())


def add_status_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and how to show its status."""
    add_folder(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="keep showing it until the run ends; wait for a build that has not begun",
    )
    add_json_flag(parser)


def run_status(options: argparse.Namespace) -> int:
    """Print the status, and return the exit code for the state."""
    store: Store = options.folder
    if options.watch:
        return watch_status(store, as_json=options.json)
    status = read_status(store)
    show_status(status, as_json=options.json)
    return status.exit_code


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and the flag to open the report."""
    parser.description = (
        "Writes DIR/.fineweb-shards/report.html and prints the path. About a folder in a bucket it is\n"
        "written into the user's cache folder on this machine; nothing in the bucket is changed."
    )
    add_folder(parser)
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def run_report(options: argparse.Namespace) -> None:
    """Write the report and print its path. About a folder in a bucket it is written where a build on this machine has
    it, in the scratch folder of that address, so that the right to read is enough."""
    ignore_closed_output()
    store: Store = options.folder
    path = report_path(scratch_folder(store.location, "")) if store.is_remote else None
    path = write_report(store, path=path)
    print(printable(str(path)))
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        LineScreen().warn("No browser was found here: open the file named above.")


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder to export from, or the folders to mix, and a flag for every setting of the output."""
    add_folder(parser, nargs="?")
    parser.add_argument(
        "--mix",
        action="append",
        type=as_argument(parse_mixed),
        metavar="DIR=W[,epochs=N]",
        help="instead of DIR: mix the documents of finished folders by tokens, each with a share in proportion to its "
        "weight, such as 7, 0.7 or 70%%; repeatable, once for each folder",
    )
    add_setting_flags(parser, EXPORT_SETTINGS)
    add_fresh_flags(parser)
    add_json_flag(parser)


def run_export(options: argparse.Namespace) -> None:
    """Export, verify, and print the result."""
    from fineweb_shards.run.export import export, make_export_job, open_export_source
    from fineweb_shards.run.export_mix import make_mix_job

    interrupts = Interrupts(options.resume)
    ignore_closed_output()
    config = _export_config(options)
    screen = LineScreen()
    interrupts.on_stop = screen.say_stopping
    observer = WaitsOnScreen(screen)
    if config.parts:
        sources = [open_export_source(read_store(part.input[0])) for part in config.part_configs]
        job = make_mix_job(sources, config, observer)
    else:
        job = make_export_job(open_export_source(options.folder), config, observer)
    with _progress_of(options) as progress:
        fresh, yes = options.fresh, options.yes
        done = export(job, config, fresh=fresh, yes=yes, say=screen.warn, observer=observer, progress=progress)
        if config.verify and done.seconds:
            progress.begin(State.VERIFYING, done.manifest.tokens)
            check_folder(done.spec.store, screen.warn, lambda record: progress.add(record.tokens))
    interrupts.work_is_done()
    first = "Nothing to do: the export was made before."
    if options.json:
        if options.for_library and not done.seconds:
            JsonScreen().say(first)
        values = {**folder_values(done.spec.store, done.manifest), "new_tokens": done.new_tokens}
        warnings = output_warnings(done.spec, done.manifest)
        put_json({"event": "result", **values, "seconds": round(done.seconds, 3), "warnings": warnings})
        return
    if done.seconds:
        speed = show_bytes(done.spec.shard_format.size_bytes(done.new_tokens) / max(done.seconds, 1e-9))
        first = f"Done: in {show_seconds(done.seconds)}, {speed}/s."
    print_result(first, *result_lines(done.spec, done.manifest))


def _export_config(options: argparse.Namespace) -> Config:
    """Return the settings of an export; UsageError if flags contradict each other."""
    parts: list[dict[str, Any]] = options.mix or []
    given = {name: getattr(options, name) for name in EXPORT_SETTINGS}
    if not parts and options.folder is None:
        raise UsageError("DIR is missing.", "Name a folder, or several by --mix DIR=WEIGHT; see --help.")
    if parts and options.folder is not None:
        folder = options.folder.location
        raise UsageError(f"{folder} and --mix exclude each other.", f"To mix it, too: --mix {folder}=WEIGHT.")
    if len(parts) == 1:
        folder = parts[0]["input"][0]
        raise UsageError(
            f"--mix {folder}: there is nothing to mix it with.", "Name the others by --mix, or copy it without --mix."
        )
    for name in ("mix_until", "max_tokens"):
        is_used = parts or (name == "max_tokens" and given["shuffle"] is not None)
        if given[name] is not None and not is_used:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {given[name]}: it is about a mix.", "Name its folders by --mix, or leave it out.")
    if not parts and given["shuffle"] is not None:  # a single part, which is not divided
        parts = [{"input": (options.folder.location,)}]
    config = load_config(None, {**given, "parts": parts or None})
    config.check()
    return config
