"""The state of a run at one moment: shown on the screen, and kept in the heartbeat file for `status`."""

from __future__ import annotations

from dataclasses import dataclass

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
    tokens: int
    expected_tokens: int | None
    expected_exact: bool
    resumed_tokens: int  # finished before this run began
    shard: int  # the index of the shard being written
    shard_tokens: int  # in it so far
    shard_size_tokens: int  # in a full shard
    tokens_per_second: float | None  # over the last minutes of work
    seconds_left: float | None  # None if unknown, as during a wait
    elapsed_seconds: float  # of this run
    workers: int
    memory_bytes: int
    peak_memory_bytes: int
    finished_shards: int
    verified_shards: int
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
