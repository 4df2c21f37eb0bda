"""Runs a build in this process and kills it (SIGKILL) at the n-th file operation that matters.

    python crash_driver.py N before|after INPUT OUT SHARD_TOKENS

Prints how many such operations a whole run has, if it gets there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

import runs

DEADLY, WHEN, INPUT, OUT = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
calls = 0


def deadly(name: str) -> None:
    real = getattr(os, name)

    def call(*arguments: object) -> object:
        global calls
        calls += 1
        if calls == DEADLY and WHEN == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return real(*arguments)
        finally:
            if calls == DEADLY and WHEN == "after":
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, call)


for operation in ("fsync", "replace", "unlink"):
    deadly(operation)
runs.build_inline(OUT, INPUT, shard_tokens=int(sys.argv[5]), engine="tiktoken", batch_bytes=2048)
print(calls)
