"""`.fineweb-shards/heartbeat.json`: the run as it was a few seconds ago, for `status` and the report.

Replaced whole every few seconds, without fsync: after a crash it may be old, and the folder's lock tells that
nobody is at work any more. Never a checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fineweb_shards.system.durable import WORK_FOLDER, read_file, write_quickly
from fineweb_shards.system.json_values import check_moment, make, parse_object
from fineweb_shards.watching.snapshot import Snapshot

FILE_NAME = "heartbeat.json"
FORMAT_VERSION = 1
_SIZE_BYTES = 8192  # always the same, filled up with spaces


@dataclass(frozen=True, slots=True)
class Invocation:
    """How the run was started: what is needed to start it again."""

    command: str
    folder: str  # in which it was typed
    process: int
    started: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A snapshot, when it was taken, and of which run."""

    written: float  # seconds since 1970
    invocation: Invocation
    snapshot: Snapshot
    exit_code: int | None = None  # of a run that has ended and could still say so

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT_VERSION, **asdict(self)}

    def save(self, folder: Path) -> None:
        """May raise OSError. On a full disk the old one is overwritten where it is: that takes no new space,
        and that the disk is full is what somebody will want to read."""
        path = folder / WORK_FOLDER / FILE_NAME
        data = json.dumps(self.to_json(), indent=1).encode().ljust(_SIZE_BYTES)
        try:
            write_quickly(path, data)
        except OSError:
            if not path.is_file() or path.stat().st_size != len(data):
                raise
            with open(path, "r+b", buffering=0) as file:
                file.write(data)


def invoke(command: str) -> Invocation:
    """This process."""
    return Invocation(command, os.getcwd(), os.getpid(), time.time())


def load_heartbeat(folder: Path) -> Heartbeat | None:
    """The folder's last heartbeat; None where there is none, or none that this version can read."""
    try:
        data = parse_object(read_file(folder / WORK_FOLDER / FILE_NAME))
        if data.pop("format", None) != FORMAT_VERSION:
            return None
        beat = make(Heartbeat, data)
        _check(beat)
    except (OSError, ValueError):
        return None
    return beat


def _check(beat: Heartbeat) -> None:
    """ValueError for what can't be shown: `status` divides, and turns seconds into dates."""
    check_moment(beat.written)
    check_moment(beat.invocation.started)
    check_moment(beat.written + (beat.snapshot.seconds_left or 0.0))
    if beat.snapshot.shard_size_tokens < 1:
        raise ValueError("a shard of no tokens")
    if "\0" in beat.invocation.folder:
        raise ValueError("no folder has such a name")
    os.fsencode(beat.invocation.folder)
