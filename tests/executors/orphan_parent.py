"""Encodes a file over and over; prints the workers' process ids and goes on until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.system.memory_guard import MemoryGuard
from tests.support import collecting, runs

if __name__ == "__main__":
    source = runs.job_of(Path(sys.argv[2]), sys.argv[1], batch_bytes=1024).source
    with LocalExecutor(runs.spec_of(source), 2, 10**6, MemoryGuard(2**40)) as executor:
        while True:
            for _ in collecting.encode(executor, source.batches(runs.START)):
                print(*[worker.pid for worker in executor._workers], flush=True)
