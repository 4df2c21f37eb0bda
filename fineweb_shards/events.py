"""Who is told what happens in a run: the terminal, the log, or from a worker its parent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a line in the log and, if it is `loud`, one on the screen."""

    kind: str  # one word: start, shard, retry, worker, note …
    text: str
    loud: bool = True


class Observer:
    """Tells nobody. Those who do tell somebody override the methods, which may be called from any thread."""

    def tell(self, event: Event) -> None:
        """Something has happened."""

    def wait(self, cause: str, reason: str | None) -> None:
        """The run stands still for `reason`; None: it goes on. One `cause` does not end another's wait."""

    def fetch(self, size_bytes: int) -> None:
        """So many bytes have come over the network."""
