"""Write and read `.fineweb-shards/heartbeat.json`: the state of a run, for `status` and the report.

The run replaces it every few seconds, without fsync: after a crash it may be old, and then the folder's lock
shows that no run is active. It is never used as a checkpoint. What it has of the run, a `Snapshot`, is also
shown on the screen.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fineweb_shards.system.durable import write_quickly
from fineweb_shards.system.json_values import check_moment, make, parse_object
from fineweb_shards.system.own_files import WORK_FOLDER, open_own, read_file

FILE_NAME = "heartbeat.json"
FORMAT_VERSION = 1
_SIZE_BYTES = 8192  # padded with spaces, so that it can be overwritten in place (see `save`)
STARTING = "starting"
FETCHING = "fetching"  # and encoding: the input is on the hub
ENCODING = "encoding"
WAITING = "waiting"  # for the network, memory or the disk, as `reason` says
VERIFYING = "verifying"
COMPLETE = "complete"
STOPPED = "stopped"  # by an error or a signal, as `reason` says
WORKING = (FETCHING, ENCODING)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown about a run. Tokens are counted over all runs in the folder."""

    state: str
    reason: str
    tokens: int = 0
    expected_tokens: int | None = None
    expected_exact: bool = False
    resumed_tokens: int = 0  # finished before this run began
    shard: int = 0  # the index of the shard being written
    shard_tokens: int = 0  # in it so far
    shard_size_tokens: int = 1  # in a full shard
    tokens_per_second: float | None = None  # over the last minutes of work
    seconds_left: float | None = None  # None if unknown, as during a wait
    elapsed_seconds: float = 0.0  # of this run
    workers: int = 0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    finished_shards: int = 0
    verified_shards: int = 0
    fetched_bytes: int = 0  # over the network, in this run
    fetched_bytes_per_second: float | None = None  # over the last minutes of work
    waited_seconds: float = 0.0  # of this run, in which no token was made
    nodes: int = 0  # of a cluster; 0: all workers are on this machine

    @property
    def share(self) -> float | None:
        """The share of the stream that is done, from 0 to 1; None if its length is unknown."""
        return self.tokens / self.expected_tokens if self.expected_tokens else None

    def reason_or_state(self) -> str:
        """Return the reason of a wait or a stop, which says more than the state; else the state."""
        return self.reason or self.state


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a run was started: what is needed to start it again."""

    command: str
    folder: str  # the current folder when it was typed
    process: int
    started: float  # seconds since 1970
    machine: str = ""  # its name; unknown in heartbeats of older versions


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A snapshot, the time it was taken, and the run it is of."""

    written: float  # seconds since 1970
    invocation: Invocation
    snapshot: Snapshot
    exit_code: int | None = None  # None while it runs, and after it was killed

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT_VERSION, **asdict(self)}

    def save(self, folder: Path) -> None:
        """Write it to the output folder; may raise OSError. On a full disk, overwrite the old file in place:
        that takes no new space, and `status` must be able to show that the disk is full."""
        path = folder / WORK_FOLDER / FILE_NAME
        data = json.dumps(self.to_json(), indent=1).encode().ljust(_SIZE_BYTES)
        try:
            write_quickly(path, data)
        except OSError:
            if not path.is_file() or path.stat().st_size != len(data):
                raise
            with open_own(path, "r+b", buffering=0) as file:
                file.write(data)


def current_invocation(command: str) -> Invocation:
    """Return the invocation of this process, which `command` would start again."""
    return Invocation(command, os.getcwd(), os.getpid(), time.time(), socket.gethostname())


def load_heartbeat(folder: Path) -> Heartbeat | None:
    """Read the folder's last heartbeat; None if there is none, or none that this version can read."""
    try:
        data = parse_object(read_file(folder / WORK_FOLDER / FILE_NAME))
        if data.pop("format", None) != FORMAT_VERSION:
            return None
        heartbeat = make(Heartbeat, data)
        # What `status` can't show: it divides, and turns seconds into dates.
        check_moment(heartbeat.written)
        check_moment(heartbeat.invocation.started)
        check_moment(heartbeat.written + (heartbeat.snapshot.seconds_left or 0.0))
        os.fsencode(heartbeat.invocation.folder)
        if heartbeat.snapshot.shard_size_tokens < 1 or "\0" in heartbeat.invocation.folder:
            return None
    except (OSError, ValueError):
        return None
    return heartbeat
