"""Kills a build (SIGKILL) before and after every file operation that matters, and resumes it each time.

    python crash_every_point.py < job.json

The job is {"kind", "input", "out", "settings", "resumed", "expected"}: a build of `input`, an export of it or a mix of
several, and the SHA-256 of every file it must end with; of writes of tokens only each `writes`-th counts, and of all
operations only each `step`-th is tried: with a step of 2 no state between two operations is left out, because what is
there before one of them was there after the one in front of it. Every try is a fork of this process, so that hundreds
of them take seconds. `piles` is how many a shuffle has. Prints the number of tries.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.run import shuffle
from fineweb_shards.system import own_files
from fineweb_shards.writing import piles
from tests.support import reference, runs

JOB = {"writes": 9, "step": 1, "piles": 1, **json.load(sys.stdin)}
OUT = Path(JOB["out"])
OPERATIONS = ("write", "fsync", "replace", "unlink", "truncate", "ftruncate")


def make(**settings: object) -> None:
    if JOB["kind"] == "export":
        runs.export(Path(JOB["input"]), OUT, **settings)
    elif JOB["kind"] == "mix":
        folders = [*map(Path, JOB["input"])]
        parts = [{"weight": 7}, {"weight": 3}] if len(folders) > 1 else [{}]
        runs.export_mix(OUT, folders, parts, **settings)
    else:
        runs.build_inline(OUT, JOB["input"], **{"engine": "tiktoken", **settings})


class Deadly:
    """Counts the operations; the one with the number `deadly` is the last."""

    def __init__(self, deadly: int, when: str) -> None:
        self.calls, self.deadly, self.when = 0, deadly, when
        self.writes = 0
        self.lock = threading.Lock()  # an export seals files in threads
        for name in OPERATIONS:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        own_files.open = self.open  # type: ignore[attr-defined]

    def open(self, path: Path, mode: str, buffering: int, opener: Callable[[str, int], int]) -> IO[bytes]:
        """Like the builtin `open`, whose files call no function of `os` to write or to truncate."""
        if mode == "rb":
            return open(path, mode, buffering, opener=opener)
        write, truncate = self.wrap("file.write", io.FileIO.write), self.wrap("truncate", io.FileIO.truncate)
        kind: Any = type("File", (io.FileIO,), {"write": write, "truncate": truncate})
        raw = kind(path, mode.replace("b", ""), opener=opener)
        return raw if not buffering else io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def count(self, name: str) -> bool:
        """Whether this operation is the last."""
        with self.lock:
            self.writes += name == "write"
            if name == "write" and self.writes % JOB["writes"]:
                return False
            self.calls += 1
            return self.calls == self.deadly

    def wrap(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: Any) -> object:
            is_last = self.count(name)
            if is_last and self.when == "before":
                if name in ("write", "file.write"):  # a write may also get half of its way
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*arguments)
            finally:  # also after one that fails, such as the removal of a file that is not there
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call


def forked(action: Callable[[], None]) -> int:
    """Run in a child; its exit code, negative for a signal."""
    if not (child := os.fork()):
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_ledger() -> None:
    """Whatever the manifest names is on the disk, whole, and no file with a name is half."""
    from fineweb_shards.reading.verify import verify_folder

    manifest = OUT / "manifest.json"
    if manifest.exists():
        verdict = verify_folder(FolderStore(OUT))
        assert not verdict.damages, verdict.damages
        assert not verdict.untracked, verdict.untracked
    found = reference.digests(runs.outputs_in(OUT)) if OUT.exists() else {}
    assert found.items() <= JOB["expected"].items(), found


def resume() -> None:
    check_ledger()
    manifest = OUT / "manifest.json"
    complete = manifest.exists() and json.loads(manifest.read_text())["complete"]
    make(**JOB["resumed"])
    found = reference.digests(runs.outputs_in(OUT))
    assert found == JOB["expected"], (found, JOB["expected"])
    # A run killed at its very last step has nothing to do any more, and does not tidy up.
    assert complete or not list((OUT / ".fineweb-shards").glob("*.tmp"))


def main() -> None:
    shuffle.choose_count, piles._TOKENS_PER_PILE = lambda *_: JOB["piles"], 1
    runs.encoder("tiktoken", eot_first=False)
    runs.encoder("tiktoken", eot_first=True)
    tries = number = 0
    while True:
        number += JOB["step"]
        for when in ("before", "after"):
            shutil.rmtree(OUT, ignore_errors=True)

            def crash(number: int = number, when: str = when) -> None:
                Deadly(number, when)
                make(**JOB["settings"])

            code = forked(crash)
            if code == 0:  # it had no such operation
                print(tries)
                return
            assert code == -signal.SIGKILL, code
            assert forked(resume) == 0, f"{when} operation {number}"
            tries += 1


main()
