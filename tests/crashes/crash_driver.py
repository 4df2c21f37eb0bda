"""Builds that are killed (SIGKILL) at the n-th file operation that matters, each in a fork of this process.

Reads jobs from standard input, one a line: [n, "before" or "after", input, out, shard tokens]. Answers each with [exit
code, operations of a run that got to its end].
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from tests.support import runs

calls = 0
write_here = os.write


def make_deadly(name: str, number: int, when: str) -> None:
    """The `number`-th call of this function of `os`, or of another one of them, is the last."""
    real = getattr(os, name)

    def call(*arguments: object) -> object:
        global calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return real(*arguments)
        finally:
            if calls == number and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, call)


def crash(number: int, when: str, path: str, out: str, shard_tokens: int) -> int:
    for operation in ("write", "fsync", "replace", "unlink", "truncate"):
        make_deadly(operation, number, when)
    runs.build_inline(Path(out), path, shard_tokens=shard_tokens, engine="tiktoken", batch_bytes=2048)
    return calls


def forked(number: int, when: str, path: str, out: str, shard_tokens: int) -> tuple[int, int]:
    """Exit code, negative for a signal, and the number of operations."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            write_here(writer, str(crash(number, when, path, out, shard_tokens)).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counted = os.read(reader, 100)
    os.close(reader)
    return code, int(counted or 0)


runs.encoder("tiktoken")
for line in sys.stdin:
    print(json.dumps(forked(*json.loads(line))), flush=True)
