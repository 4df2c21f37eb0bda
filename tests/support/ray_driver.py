"""Runs commands of this program in one process that stays connected to a Ray cluster.

python ray_driver.py ADDRESS; each line of standard input is a JSON list of words, each line of standard output the exit
code and what was written to standard error. A shuffle has five piles, and a checkpoint after every few tokens.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import ray

from fineweb_shards.commands.main import main
from fineweb_shards.run import shuffle
from fineweb_shards.writing import piles


def used_store_bytes() -> int:
    name = "object_store_memory"
    return int(ray.cluster_resources()[name] - ray.available_resources().get(name, 0))


def run(words: list[str]) -> tuple[int, str]:
    if words == ["used-store-bytes"]:
        return used_store_bytes(), ""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main(words)
    return code, errors.getvalue()


if __name__ == "__main__":
    shuffle.choose_count, piles._TOKENS_PER_PILE = lambda *_: 5, 1
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="critical")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
