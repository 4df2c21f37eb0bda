"""The command `fineweb-shards`, with workers whose disk has faults: python hostile_driver.py build …"""

from __future__ import annotations

import sys

from fineweb_shards.commands import main as cli
from fineweb_shards.run import build
from tests.executors import hostile

if __name__ == "__main__":
    build.WorkerSpec = hostile.HostileSpec  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[1:]))
