"""The command `fineweb-shards` on a disk that takes its time: python slow_disk_driver.py build …"""

from __future__ import annotations

import sys
import time

from fineweb_shards.commands import main as cli
from fineweb_shards.store.writer import ShardWriter
from fineweb_shards.types import Tokens

SECONDS_FOR_A_SLICE = 0.2

write = ShardWriter.write


def write_slowly(writer: ShardWriter, tokens: Tokens, documents: int) -> None:
    time.sleep(SECONDS_FOR_A_SLICE)
    write(writer, tokens, documents)


if __name__ == "__main__":
    ShardWriter.write = write_slowly  # type: ignore[method-assign]
    sys.exit(cli.main(sys.argv[1:]))
