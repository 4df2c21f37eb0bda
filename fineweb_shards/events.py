"""Events of a run, and the interface of those that receive them.

The parent's observer writes to the terminal and the log (watching/progress.py); a worker's sends everything to the
parent (executors/local/worker.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a line in the log and, if `loud`, on the screen."""

    kind: str  # one word: start, shard, retry, worker, note …
    text: str
    loud: bool = True


class Observer:
    """Receives the events of a run, from any thread. This base class ignores them; subclasses override methods."""

    def tell(self, event: Event) -> None:
        """Receive an event."""

    def set_wait(self, cause: str, reason: str | None) -> None:
        """Receive the beginning of a wait for `cause` ("network", "disk" …), or its end if `reason` is None. Waits for
        different causes may overlap and end separately."""

    def add_fetched(self, size_bytes: int) -> None:
        """Receive the number of bytes just fetched over the network."""
