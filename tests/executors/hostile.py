"""Faults where a worker writes tokens or seals files. Importable by worker processes.

The environment names a folder of faults. Each is a file, named after the point at which it happens, the number of the
passage there (counted over all workers, from 0), and what happens: `write-half@3=kill`. A fault that has happened is
gone, unless it is `lasting`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import deque
from multiprocessing import current_process
from pathlib import Path
from typing import Any, BinaryIO

from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output import shard_files
from fineweb_shards.output.shard_files import TokenWriter
from fineweb_shards.system import retry
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Placement, Tokens

FAULTS = "TEST_FAULTS"
POINTS = (
    "encoded",  # before a block is written
    "between",  # before the second or a later part of a block that spans several files
    "write-half",  # half of the bytes are written
    "written",  # all bytes are written, the parent does not know
    "seal",  # before a file is hashed
    "hashed",  # before it is synced
    "synced",  # before the parent knows
)
_write, _fsync = os.write, os.fsync
_sealing = threading.local()


def plan(folder: Path, *faults: str) -> Path:
    """Write the faults down; returns the folder for the environment."""
    folder.mkdir()
    for fault in faults:
        (folder / fault).touch()
    return folder


def pass_point(point: str) -> None:
    """Count a passage; if a fault is planned for it, it happens now."""
    folder = Path(os.environ[FAULTS])
    descriptor = os.open(folder / f"passed {point}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    _write(descriptor, b"!")  # appended and counted in one step, whoever else does
    number = os.lseek(descriptor, 0, os.SEEK_CUR) - 1
    os.close(descriptor)
    for path in folder.glob(f"{point}@*"):
        when, _, what = path.name.partition("@")[2].partition("=")
        lasting = what.startswith("lasting-")
        if int(when) == number or (lasting and number > int(when)):
            if not lasting:
                path.unlink(missing_ok=True)
            strike(what.removeprefix("lasting-"))


def strike(what: str) -> None:
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-all":
            os.killpg(0, signal.SIGKILL)
        case "bug":
            raise ZeroDivisionError("a bug")
        case "exit":
            raise SystemExit
        case "wait":
            while (Path(os.environ[FAULTS]) / "closed").exists():
                time.sleep(0.01)
        case _:
            code = getattr(errno, what)
            raise OSError(code, os.strerror(code))


def hostile_write(file: int, data: memoryview) -> int:
    pass_point("write")
    return _write(file, data)


def hostile_fsync(file: int) -> None:
    if not getattr(_sealing, "now", False):
        _fsync(file)
        return
    pass_point("hashed")
    _fsync(file)
    pass_point("synced")


def hostile_read(file: BinaryIO, shard_format: ShardFormat, offset: int, size_bytes: int, begin: int) -> Any:
    pass_point("seal")
    _sealing.now = True
    return _read(file, shard_format, offset, size_bytes, begin)


_read = shard_files.read_contents


class HostileWriter(TokenWriter):
    """Writes where faults are planned."""

    _last: Tokens | None = None

    def write(self, tokens: Tokens, placement: Placement) -> None:
        pass_point("between" if tokens is self._last else "encoded")
        self._last = tokens
        try:
            super().write(tokens, placement)
        finally:
            pass_point("written")

    def _write_all(self, writes: deque[tuple[str, int, memoryview]]) -> None:
        path, offset, data = writes[0]
        if len(data) > 1 and any(Path(os.environ[FAULTS]).glob("write-half@*")):
            super()._write_all(deque([(path, offset, data[: len(data) // 2])]))
            pass_point("write-half")
        super()._write_all(writes)


class HostileSpec(WorkerSpec):
    """A worker with such a disk."""

    __slots__ = ()

    def make_writer(self, observer: Observer) -> TokenWriter:
        if current_process().name != "fineweb-shards worker":
            return super().make_writer(observer)  # the parent's disk is fine
        retry.FIRST_WAIT_SECONDS = 0.01
        os.write, os.fsync = hostile_write, hostile_fsync  # type: ignore[assignment]
        shard_files.read_contents = hostile_read
        return HostileWriter(self.shard_format, Disk(self.store.folder, self.max_outage_seconds, observer))
