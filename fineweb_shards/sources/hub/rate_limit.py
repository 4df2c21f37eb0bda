"""Read from a server's headers how long to wait, and describe the hub's rate limit (429).

Headers are untrusted text: whatever is in them becomes a number of seconds to wait, or 0.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping

# The hub counts in windows of five minutes. If a server requests a longer wait, it is asked again earlier.
LONGEST_REQUESTED_SECONDS = 900.0
# Requests in five minutes: anonymous, with the token of a free account, of a PRO account.
_QUOTAS = {"api": (500, 1000, 2500), "resolvers": (3000, 5000, 12000)}
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d+)\s*;\s*t\s*=\s*(\d+)')


def requested_wait_seconds(headers: Mapping[str, str], status: int) -> float:
    """Return the wait by Retry-After and, after a 429, by RateLimit; 0 if neither says."""
    seconds = _retry_after(headers.get("Retry-After", ""))
    if status == 429:  # in other answers RateLimit only says when the next window begins
        limits = _LIMIT.findall(headers.get("RateLimit", ""))
        seconds = max([seconds, *(float(reset) for _, left, reset in limits if int(left) == 0)])
    return min(seconds, LONGEST_REQUESTED_SECONDS)


def describe_limit(headers: Mapping[str, str], *, has_token: bool) -> tuple[str, str]:
    """Return a text for a 429, and one that says what would raise the limit."""
    limits = _LIMIT.findall(headers.get("RateLimit", ""))
    kind = limits[0][0] if limits and limits[0][0] in _QUOTAS else "resolvers"
    anonymous, free, pro = _QUOTAS[kind]
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
