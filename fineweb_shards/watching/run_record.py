"""The record of one run, for the report: when it began and ended, how, what it made, what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fineweb_shards.units import show_seconds

RUN_COMPLETE = "complete"
_PHRASES = {"network": "the network", "disk": "the disk"}


@dataclass(frozen=True, slots=True)
class Waited:
    """The number and the total length of a run's waits for one cause."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of `build`, from its start or resume to its end. Times are seconds since 1970."""

    number: int
    begin: float
    end: float  # of a run that was killed: its last point in the history
    first_tokens: int  # finished before it began
    last_tokens: int
    budget_bytes: int = 0  # of memory
    fetched_bytes: int = 0  # over the network
    stood_still_seconds: float = 0.0  # in which it waited and no token was made
    waited: Mapping[str, Waited] = field(default_factory=dict)  # by cause
    ending: str = ""  # how it ended; empty if it was killed

    @property
    def new_tokens(self) -> int:
        return max(0, self.last_tokens - self.first_tokens)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def work_seconds(self) -> float:
        """The duration without the time in which it only waited."""
        return max(0.0, self.seconds - self.stood_still_seconds)

    def describe_waits(self) -> str:
        """Return a text such as `12 min for the network, 2 times`; empty if it never waited."""
        return "; ".join(
            f"{show_seconds(waited.seconds)} for {_PHRASES.get(cause, cause)}, {_times(waited.count)}"
            for cause, waited in self.waited.items()
            if waited.count
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
