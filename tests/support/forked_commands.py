"""Commands one after the other, each in a fork of this process, which has loaded the clients of the hub.

Reads orders from standard input, a JSON object on a line: words, environment, and the files for what is said. Answers
each with its exit code. A fork begins as a command does: with its own environment, which the clients read again, and
with nothing of what another command has remembered. It has no workers (inline.py).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def load() -> None:
    """What every command of the hub needs, and takes two seconds to load."""
    import datasets
    import datasets.packaged_modules
    import pyarrow.parquet

    from fineweb_shards.commands import build
    from tests.support import inline, runs

    assert all((datasets, inline, pyarrow, build))
    for eot_first in (True, False):
        runs.encoder("auto", eot_first=eot_first)


def obey(order: dict[str, Any]) -> int:
    """Run a command in this process, which is a fork; return its exit code."""
    os.environ.clear()
    os.environ.update(order["environment"])
    for descriptor, path in enumerate((os.devnull, order["output"], order["errors"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    for name in ("huggingface_hub.constants", "datasets.config"):  # which read the environment
        importlib.reload(sys.modules[name])
    from fineweb_shards.commands import main as cli
    from fineweb_shards.run import build
    from tests.support import inline

    build.LocalExecutor = inline.InlineWorkers  # type: ignore[assignment, attr-defined]
    sys.argv = [cli.__file__, *order["words"]]
    return cli.main()


def main() -> None:
    load()
    for line in sys.stdin:
        if not (child := os.fork()):
            code = 1
            try:
                code = obey(json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
