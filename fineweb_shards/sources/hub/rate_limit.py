"""Read from a server's headers how long to wait and what is left of a quota, and describe the hub's limits.

Headers are untrusted text: whatever is in them becomes a number of seconds to wait, or 0.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

# The hub counts in windows of five minutes. If a server requests a longer wait, it is asked again earlier.
LONGEST_REQUESTED_SECONDS = 900.0
# Requests in five minutes: anonymous, with the token of a free account, of a PRO account.
_QUOTAS = {"api": (500, 1000, 2500), "resolvers": (3000, 5000, 12000)}
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d{1,18})\s*;\s*t\s*=\s*(\d+)')
_POLICY = re.compile(r'"(\w+)"\s*;\s*q\s*=\s*(\d{1,18})\s*;\s*w\s*=\s*(\d{1,18})')


@dataclass(frozen=True, slots=True)
class Limit:
    """What an answer says about one quota: RateLimit and RateLimit-Policy."""

    kind: str  # "resolvers" or "api"
    left: int  # requests in this window
    reset_seconds: float  # until the next window
    quota: int = 0  # requests in a window; 0: not told
    window_seconds: float = 0.0


def read_limits(headers: Mapping[str, str]) -> list[Limit]:
    """Return the limits in the headers of an answer."""
    policies = {
        kind: (int(q), float(w)) for kind, q, w in _POLICY.findall(headers.get("RateLimit-Policy", ""))
    }
    return [
        Limit(kind, int(left), min(float(reset), LONGEST_REQUESTED_SECONDS), *policies.get(kind, (0, 0.0)))
        for kind, left, reset in _LIMIT.findall(headers.get("RateLimit", ""))
    ]


def requested_wait_seconds(headers: Mapping[str, str], status: int) -> float:
    """Return the wait by Retry-After and, after a 429, by RateLimit; 0 if neither says."""
    seconds = _retry_after(headers.get("Retry-After", ""))
    if status == 429:  # in other answers RateLimit only says when the next window begins
        seconds = max([seconds, *(limit.reset_seconds for limit in read_limits(headers) if not limit.left)])
    return min(seconds, LONGEST_REQUESTED_SECONDS)


def address_quota(*, has_token: bool) -> int:
    """Return how often one may ask in a window where a file is, without a token or with a free account's."""
    return _QUOTAS["resolvers"][1 if has_token else 0]


def describe_limit(kind: str, *, has_token: bool) -> tuple[str, str]:
    """Return a text for a quota that is used up, and one that says what would raise it."""
    anonymous, free, pro = _QUOTAS.get(kind, _QUOTAS["resolvers"])
    if has_token:
        return "rate limit (429)", f"a free account has {free:,} requests in 5 minutes, a PRO account {pro:,}"
    return (
        "rate limit (429)",
        f"without HF_TOKEN there are {anonymous:,} requests in 5 minutes, with one of a free account "
        f"{free:,}, of a PRO account {pro:,}",
    )


def _retry_after(text: str) -> float:
    """Parse a number of seconds, whole or not, or a date; 0 for everything else."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text)
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _seconds_until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError, OSError):  # no date, or one outside the range of the clock
        return 0.0
