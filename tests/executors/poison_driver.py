"""The command `fineweb-shards`, with engines that can be poisoned: python poison_driver.py build …"""

from __future__ import annotations

import sys

from fineweb_shards.commands import main as cli
from fineweb_shards.run import build
from tests.executors import poison

if __name__ == "__main__":
    build.WorkerSpec = poison.PoisonedSpec  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[1:]))
