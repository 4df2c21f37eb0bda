"""One run as people ask for it afterwards: when it began and ended, how, what it made, what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fineweb_shards.units import show_seconds

RUN_COMPLETE = "complete"
_PHRASES = {"network": "the network", "disk": "the disk"}


@dataclass(frozen=True, slots=True)
class Waited:
    """All waits of a run for one cause."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of `build`, from its start or resume to its end. Times are seconds since 1970."""

    number: int
    begin: float
    end: float  # or when it was last heard of
    first_tokens: int  # finished before it began
    last_tokens: int
    budget_bytes: int = 0  # of memory
    fetched_bytes: int = 0  # over the network
    stood_still_seconds: float = 0.0  # in which a wait kept it from making anything
    waited: Mapping[str, Waited] = field(default_factory=dict)  # by cause
    ending: str = ""  # how it ended, where it could still say so

    @property
    def new_tokens(self) -> int:
        return max(0, self.last_tokens - self.first_tokens)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def work_seconds(self) -> float:
        """Waiting is no work."""
        return max(0.0, self.seconds - self.stood_still_seconds)

    def describe_waits(self) -> str:
        """`12 min for the network, 2 times`; nothing where it never waited."""
        return "; ".join(
            f"{show_seconds(waited.seconds)} for {_PHRASES.get(cause, cause)}, {_times(waited.count)}"
            for cause, waited in self.waited.items()
            if waited.count
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
