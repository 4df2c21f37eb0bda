"""The verbs that work on finished shards: `export`, `inspect`, `upload`. Thin, like cli.py."""

from __future__ import annotations

import argparse
import sys

from fineweb_shards.terminal import printable

EXPORT_SETTINGS = (
    "out", "layout", "shard_tokens", "val_tokens", "val_ratio", "val_seed", "last_shard", "verify",
)  # fmt: skip


def run_export(options: argparse.Namespace) -> None:
    from fineweb_shards.cli import catch_signals, check_folder
    from fineweb_shards.config import load_config
    from fineweb_shards.export import export, export_lines, open_origin

    catch_signals()
    given = {name: getattr(options, name) for name in EXPORT_SETTINGS}
    origin = open_origin(options.folder)
    if given["shard_tokens"] is None:
        given["shard_tokens"] = origin.manifest.settings["shard_tokens"]
    config = load_config(None, given)
    result = export(origin, config, fresh=options.fresh, say=_say)
    if config.verify and result.seconds:
        check_folder(result.spec.folder)
    print("\n".join(export_lines(result)))


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
