"""What can go wrong with an answer of the stand-in hub, and the plans that decide when it does.

Nothing here does I/O: `standin_hub` asks a plan once per request and carries its fault out.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["api", "resolve", "cdn", "foreign"]


class Fault:
    """Something that goes wrong with one answer."""


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset (RST): before the headers, or after a fraction of the body."""

    after_fraction: float | None = None


@dataclass(frozen=True)
class CutBody(Fault):
    """The connection is closed in good order (FIN) before Content-Length bytes were sent."""

    after_fraction: float = 0.5


@dataclass(frozen=True)
class Stall(Fault):
    """Silence for `seconds`, or until `release_stalls`; then the answer goes on where it was."""

    after_fraction: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Slow(Fault):
    """The body trickles, which no read timeout notices."""

    bytes_per_second: int


@dataclass(frozen=True)
class Status(Fault):
    """An error status instead of the answer: 408, 429, 500, 502, 503, 504, 403 …

    The real hub's 429 says when to come back in a RateLimit header: `rate_limit_reset_seconds`.
    """

    code: int
    retry_after: int | str | None = None
    rate_limit_reset_seconds: int | None = None


@dataclass(frozen=True)
class IgnoreRange(Fault):
    """200 and the whole file for a Range request, which HTTP allows."""


@dataclass(frozen=True)
class ChangedETag(Fault):
    """The right bytes under another ETag, as if the file had been replaced."""

    etag: str = "changed"


@dataclass(frozen=True)
class WrongBytes(Fault):
    """A body of the right size and ETag with one byte that is another: only a hash of it all can tell."""

    at: int | None = None  # the byte's offset in the file; None: it is in the middle of the body
    mask: int = 1


@dataclass(frozen=True)
class OtherBody(Fault):
    """200 with a body that is nobody's answer: a page of a proxy or a hotel's network, or any bytes."""

    body: bytes


@dataclass(frozen=True)
class ExpiredMidBody(Fault):
    """The CDN closes the connection inside the body, and refuses this signed address from then on."""

    after_fraction: float = 0.5


@dataclass(frozen=True)
class WrongRedirect(Fault):
    """A redirect of a large file that leads somewhere else.

    dead: to a port that refuses connections. nowhere: without a Location. home: to the same address of the hub.
    foreign: to a host that answers everything with a page of its own, as a hotel's network does.
    """

    to: Literal["dead", "nowhere", "home", "foreign"]


@dataclass(frozen=True)
class OtherLinkedETag(Fault):
    """A redirect that names another content than the listing, as if the file had been replaced."""

    etag: str = "0" * 64


@dataclass
class RequestRecord:
    """One line of the request log. Printed, it says whether a token came along, never which one."""

    method: str
    kind: Kind
    path: str
    range: str | None
    authorized: bool
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    at: float = field(default_factory=time.monotonic)  # when it arrived
    status: int = 0  # stays 0 for a connection that was reset before the headers
    bytes_sent: int = 0
    fault: Fault | None = None

    @property
    def is_content(self) -> bool:
        return self.method == "GET" and self.kind != "api"


@dataclass(kw_only=True)
class FaultPlan(ABC):
    """Decides which requests get a fault. Only those that fit `on` and `path_contains` count."""

    on: Literal["content"] | Kind = "content"
    path_contains: str = ""
    matched: int = field(default=0, init=False)
    injected: int = field(default=0, init=False)

    def next_fault(self, request: RequestRecord) -> Fault | None:
        """Return the fault for this request; the hub asks once per request, under its lock."""
        fits = request.is_content if self.on == "content" else request.kind == self.on
        if not fits or self.path_contains not in request.path:
            return None
        fault = self.choose(self.matched)
        self.matched += 1
        self.injected += fault is not None
        return fault

    @abstractmethod
    def choose(self, number: int) -> Fault | None:
        """Return the fault for the n-th request that fits, counted from 0."""


@dataclass
class ScriptedFaults(FaultPlan):
    """The n-th entry is for the n-th request; None, and the end of the script, mean no fault."""

    script: Sequence[Fault | None]

    def choose(self, number: int) -> Fault | None:
        return self.script[number] if number < len(self.script) else None


@dataclass
class RandomFaults(FaultPlan):
    """One of `faults` with `probability`, until `budget` faults are spent."""

    faults: Sequence[Fault]
    seed: int
    probability: float
    budget: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, number: int) -> Fault | None:
        strikes = self._random.random() < self.probability and self.injected < self.budget
        return self._random.choice(self.faults) if strikes else None


@dataclass
class FirstOfEachPath(FaultPlan):
    """The fault for the first request for each path, never again: who asks a second time learns the truth."""

    fault: Fault
    _seen: set[str] = field(default_factory=set, init=False)

    def next_fault(self, request: RequestRecord) -> Fault | None:
        if request.path in self._seen:
            return None
        fault = super().next_fault(request)
        if fault is not None:
            self._seen.add(request.path)
        return fault

    def choose(self, number: int) -> Fault | None:
        return self.fault


@dataclass
class FlippedByte(FaultPlan):
    """One byte of the files is flipped in the first `times` answers that hold it; None: in all of them."""

    at: int
    mask: int
    times: int | None

    def next_fault(self, request: RequestRecord) -> Fault | None:
        first, _, last = (request.range or "").removeprefix("bytes=").partition("-")
        return super().next_fault(request) if first and int(first) <= self.at <= int(last) else None

    def choose(self, number: int) -> Fault | None:
        strikes = self.times is None or number < self.times
        return WrongBytes(self.at, self.mask) if strikes else None


@dataclass
class LastingFault(FaultPlan):
    """The same fault for every request while `active`, but for the first `spared`: an outage that a test starts and
    ends."""

    fault: Fault
    active: bool = True
    spared: int = 0

    def choose(self, number: int) -> Fault | None:
        return self.fault if self.active and number >= self.spared else None
