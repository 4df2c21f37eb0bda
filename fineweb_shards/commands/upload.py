"""`upload`: put finished shards into a dataset on the Hugging Face hub."""

from __future__ import annotations

import argparse

from fineweb_shards.commands.arguments import add_setting_flags
from fineweb_shards.commands.targets import read_store
from fineweb_shards.errors import UsageError
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.run.config import load_config
from fineweb_shards.storage.bucket_address import BucketAddress, copy_command
from fineweb_shards.storage.hub_environment import check_addresses, quiet_clients
from fineweb_shards.store.store import Store
from fineweb_shards.system.retry import Retrier
from fineweb_shards.system.standard_streams import Interrupts, ignore_closed_output
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the folder to upload, and the dataset to upload it to."""
    parser.add_argument("folder", metavar="DIR", type=read_store, help="output folder, or its sample")
    parser.add_argument("--repo", metavar="USER/NAME", required=True, help="the dataset; made if needed")
    parser.add_argument("--private", action="store_true", help="make it a private one, if it is made")
    add_setting_flags(parser, ["max_outage"])


def run(options: argparse.Namespace) -> None:
    """Verify the folder, then send what the hub does not have yet."""
    quiet_clients()  # both must be called before the clients are imported
    check_addresses()
    from fineweb_shards.run.upload import Uploader

    store: Store = options.folder
    if store.is_remote:
        command, folder = copy_command(BucketAddress.parse(store.location))
        raise UsageError(
            f"{store.location}: only a folder on this machine can be sent to the hub.",
            f"Copy it first: `{command}`, then upload {folder}.",
        )
    interrupts = Interrupts(options.resume)
    ignore_closed_output()
    config = load_config(None, {"max_outage": options.max_outage})
    screen = LineScreen()
    interrupts.on_stop = screen.say_stopping
    retrier = Retrier(config.max_outage, WaitsOnScreen(screen))
    uploader = Uploader(options.repo, retrier, screen.say)
    manifest = check_folder(store, screen.warn).manifest
    done = uploader.upload(store.folder, manifest, private=options.private)
    interrupts.work_is_done()
    sent = f"{done.sent:,} of {show_number_of(done.files, 'file')} sent" if done.sent else "Nothing to send"
    print(f"{sent}; all are verified and at {done.url}")
