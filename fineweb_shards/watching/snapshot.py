"""A run at one moment: what the screen shows, the heartbeat file holds and `status` reads."""

from __future__ import annotations

from dataclasses import dataclass

STARTING = "starting"
FETCHING = "fetching"  # and encoding: from the hub
ENCODING = "encoding"
WAITING = "waiting"  # for the network, memory or the disk: `reason` tells
VERIFYING = "verifying"
COMPLETE = "complete"
STOPPED = "stopped"  # by an error or a signal: `reason` tells
WORKING = (FETCHING, ENCODING)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known about a run. Tokens are of the whole stream, over all runs."""

    state: str
    reason: str
    tokens: int
    expected_tokens: int | None
    expected_exact: bool
    resumed_tokens: int  # finished before this run began
    shard: int  # the index of the one being written
    shard_tokens: int  # in it
    shard_size_tokens: int  # when it is full
    tokens_per_second: float | None  # over the last minutes of work
    seconds_left: float | None  # None while it stands still: nobody knows for how long
    elapsed_seconds: float  # of this run
    workers: int
    memory_bytes: int
    peak_memory_bytes: int
    finished_shards: int
    verified_shards: int
    fetched_bytes: int = 0  # over the network, in this run
    fetched_bytes_per_second: float | None = None  # over the last minutes of work
    waited_seconds: float = 0.0  # of this run, in which nothing was made

    @property
    def share(self) -> float | None:
        """Of the stream, from 0 to 1."""
        return self.tokens / self.expected_tokens if self.expected_tokens else None

    def words(self) -> str:
        """The state, for people."""
        return self.reason or self.state
