"""The flags and the output of the subcommands that take a build's folder: `verify`, `status`, `report` and `export`.

The packages reading, watching, report and run do the work.
"""

from __future__ import annotations

import argparse
import os
import re
import webbrowser
from typing import Any

from fineweb_shards.commands.arguments import add_fresh_flags, add_setting_flags, as_argument, read_store
from fineweb_shards.errors import UsageError
from fineweb_shards.output.opening import require_manifest, scratch_folder
from fineweb_shards.output.store import Store
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.report.contents import report_path
from fineweb_shards.report.page import write_report
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config, parse_mixed
from fineweb_shards.run.output_text import output_warnings, result_lines
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.stream.split import VAL_SETTINGS
from fineweb_shards.system.signals import Interrupts
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
from fineweb_shards.watching.status import folder_values, read_status, show_status

EXPORT_SETTINGS = (
    "out", "layout", "shard_tokens", *VAL_SETTINGS, "val_seed", "last_shard", "gpus", "index", "verify",
    "mix_until", "max_tokens", "shuffle", "scratch",
)  # fmt: skip
_OTHER_KEY = re.compile(r"=[\d.]+%?,([^=,/]+)$")  # what is left in place of a folder of `--mix DIR=1,epoch=2`


def add_folder(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument that names an output folder, by its path or by the config it was built with."""
    text = "output folder of a build (also s3://…), or the sample or TOML file it was built with"
    parser.add_argument("folder", metavar="DIR", nargs=nargs, type=read_store, help=text)


add_verify_flags = add_status_flags = add_folder


def run_verify(options: argparse.Namespace) -> None:
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
        why = "the running build will finish it" if alive else "left by a stopped run; the next build makes it again"
        print_result(f"{which}: not finished: {why}.")
    next_step = "a build is running here" if alive else "the build is not finished; rerun its command to resume"
    state = "complete" if manifest.complete else f"so far: {next_step}"
    count = show_number_of(manifest.shard_count, "shard")
    print_result(f"{store.location}: {count}, {manifest.tokens:,} tokens verified, {state}.")


def _progress_of(options: argparse.Namespace) -> TokensOnScreen:
    """Return a progress display, which is silent unless the library started the command."""
    return TokensOnScreen(JsonScreen(1.0) if options.for_library else Screen())


def run_status(options: argparse.Namespace) -> int:
    status = read_status(options.folder)
    show_status(status, as_json=options.json)
    return status.exit_code


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes DIR/.fineweb-shards/report.html and prints its path. The page about a folder in a bucket goes\n"
        "into your cache folder on this machine; the bucket stays unchanged."
    )
    add_folder(parser)
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run_report(options: argparse.Namespace) -> None:
    """Write the report and print its path. That of a bucket is in its scratch folder, so that read access is enough."""
    store: Store = options.folder
    path = report_path(scratch_folder(store.location, "")) if store.is_remote else None
    path = write_report(store, path=path)
    print(printable(str(path)))
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        LineScreen().warn("No browser found; open the file above yourself.")


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    add_folder(parser, nargs="?")
    text = "instead of DIR, once for each folder: mix the documents of finished folders by tokens, in proportion to "
    text += "their weights, such as 7, 0.7 or 70%%"
    parser.add_argument("--mix", action="append", type=as_argument(parse_mixed), metavar="DIR=W[,epochs=N]", help=text)
    add_setting_flags(parser, EXPORT_SETTINGS)
    add_fresh_flags(parser)


def run_export(options: argparse.Namespace) -> None:
    from fineweb_shards.run.export import export, make_export_job, open_export_source
    from fineweb_shards.run.export_mix import make_mix_job

    interrupts = Interrupts(options.resume)
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
            check_folder(job.spec.store, screen.warn, lambda record: progress.add(record.tokens))
    interrupts.work_is_done()
    first = "Nothing to do: the export exists already."
    if options.json:
        if options.for_library and not done.seconds:
            JsonScreen().say(first)
        values = {**folder_values(job.spec.store, done.manifest), "new_tokens": done.new_tokens}
        warnings = output_warnings(job.spec, done.manifest)
        put_json({"event": "result", **values, "seconds": round(done.seconds, 3), "warnings": warnings})
        return
    if done.seconds:
        speed = show_bytes(job.spec.shard_format.size_bytes(done.new_tokens) / max(done.seconds, 1e-9))
        first = f"Done in {show_seconds(done.seconds)}, {speed}/s."
    print_result(first, *result_lines(job.spec, done.manifest))


def _export_config(options: argparse.Namespace) -> Config:
    parts: list[dict[str, Any]] = options.mix or []
    given = {name: getattr(options, name) for name in EXPORT_SETTINGS}
    if not parts and options.folder is None:
        raise UsageError("DIR is missing.", "Name a folder, or several with --mix DIR=WEIGHT; see --help.")
    if parts and options.folder is not None:
        folder = options.folder.location
        raise UsageError(f"{folder} and --mix exclude each other.", f"To mix this folder too: --mix {folder}=WEIGHT.")
    for folder in (part["input"][0] for part in parts):
        if (found := _OTHER_KEY.search(folder)) and not is_url(folder) and not os.path.exists(folder):
            raise UsageError(f"--mix {folder}: unknown key {found[1]!r}.", "Write DIR=WEIGHT or DIR=WEIGHT,epochs=N.")
    if len(parts) == 1:
        folder = parts[0]["input"][0]
        raise UsageError(f"--mix {folder}: a mix needs several folders.", "Name each with its own --mix.")
    has_shuffle = given["shuffle"] is not None
    for name, needed in (("mix_until", "--mix"), ("max_tokens", "--mix or --shuffle")):
        if given[name] is not None and not parts and not (has_shuffle and name == "max_tokens"):
            flag = f"--{name.replace('_', '-')} {given[name]}"
            raise UsageError(f"{flag}: only with {needed}.", "Add that, or leave it out.")
    if has_shuffle and not parts:  # a mix of one part
        parts = [{"input": (options.folder.location,)}]
    config = load_config(None, {**given, "parts": parts or None})
    config.check()
    return config
