"""Commands that speak to the hub, without workers, each in a fork of one process that has loaded the hub's clients: a
tenth of the time of `runs.run_command`, which has the same answer. For tests in which workers are not the point.

One process that both lists and reads a file asks for its parts more often than workers do: where few requests are the
point, the real command is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import runs

# In a soak the real command is started all the same (conftest.py).
always_with_workers = False
PROGRAM = Path(__file__).parent / "forked_commands.py"


@cache
def _process() -> subprocess.Popen[str]:
    """The one that is forked."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},  # not that of the test which needs it first
    )


def close() -> None:
    """End the process that is forked, if it was needed."""
    if _process.cache_info().currsize:
        with _process() as process:
            assert process.stdin is not None
            process.stdin.close()


def run_command(*words: object, **environment: Any) -> subprocess.CompletedProcess[str]:
    """`fineweb-shards …`."""
    if always_with_workers:
        return runs.run_command(*words, **environment)
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    arguments = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("output", "errors")]
        order = {"words": arguments, "environment": {**os.environ, **environment}}
        print(json.dumps({**order, "output": str(said[0]), "errors": str(said[1])}), file=process.stdin, flush=True)
        code = int(process.stdout.readline())
        output, errors = (path.read_text() for path in said)
    return subprocess.CompletedProcess(arguments, code, output, errors)
