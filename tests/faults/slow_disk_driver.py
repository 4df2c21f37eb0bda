"""The command `fineweb-shards` on a disk that takes its time: python slow_disk_driver.py build …"""

from __future__ import annotations

import os
import sys
import time

from fineweb_shards.commands import main as cli
from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.output.shard_files import TokenWriter
from fineweb_shards.run import build
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Placement, Tokens

SECONDS_FOR_A_SLICE = float(os.environ.get("SECONDS_FOR_A_SLICE", "0.2"))


class SlowWriter(TokenWriter):
    """Sleeps before every write."""

    def write(self, tokens: Tokens, placement: Placement) -> None:
        time.sleep(SECONDS_FOR_A_SLICE)
        super().write(tokens, placement)


class SlowSpec(WorkerSpec):
    """A worker with such a disk. Workers find it in this file, which they import as `__mp_main__`."""

    __slots__ = ()

    def make_writer(self, observer: Observer) -> TokenWriter:
        return SlowWriter(self.shard_format, Disk(self.store.folder, self.max_outage_seconds, observer))


if __name__ == "__main__":
    build.WorkerSpec = SlowSpec  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[1:]))
