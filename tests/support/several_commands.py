"""Several commands one after the other in one process, which loads its libraries only once.

Reads a JSON list of lists of words from standard input, writes a list of [exit code, output, errors].
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from fineweb_shards.commands.main import main


def run(words: list[str]) -> tuple[int, str, str]:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(words)
    return code, output.getvalue(), errors.getvalue()


if __name__ == "__main__":
    print(json.dumps([run(words) for words in json.load(sys.stdin)]))
