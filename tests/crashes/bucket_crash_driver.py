"""Builds into a bucket, each in a fork of this process, for a test that kills them at a certain request.

Reads jobs from standard input, one a line: {"out", "input" (a list), "settings"}. Answers with the process id of the
build when it begins, and with its exit code (negative for a signal) and its error when it has ended. Files of more than
4 KiB are uploaded in parts, and a lock is that of a dead run after a moment.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import pytest

from fineweb_shards.output import bucket_store, bucket_work_folder
from tests.support import runs
from tests.support.bucket_server import use_small_parts

use_small_parts(pytest.MonkeyPatch())
bucket_work_folder.STALE_SECONDS, bucket_work_folder._LOOK_SECONDS = 0.2, 0.05
bucket_store._PROBE_SECONDS = 0.0


def build(job: dict[str, Any]) -> None:
    settings = job["settings"]
    if "parts" in settings:
        settings["parts"] = tuple({name: as_tuple(value) for name, value in part.items()} for part in settings["parts"])
    runs.build_inline(job["out"], *job["input"], **{"engine": "tiktoken", **settings})


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    runs.encoder("tiktoken", eot_first=False)
    runs.encoder("tiktoken", eot_first=True)
    for line in sys.stdin:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                build(json.loads(line))
            except BaseException:
                os.write(writer, traceback.format_exc()[-4000:].encode())
                os._exit(1)
            os._exit(0)
        os.close(writer)
        answer(child)
        with os.fdopen(reader) as errors:
            error = errors.read()
        answer([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error])


main()
