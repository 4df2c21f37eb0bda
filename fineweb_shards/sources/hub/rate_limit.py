"""What a server says about when to come back, and what a 429 of the hub means for whom.

Headers are a stranger's text: whatever stands in them is a number of seconds to wait, or nothing.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping

# The hub counts in windows of five minutes. A server that asks for more is asked again before.
LONGEST_ASKED_SECONDS = 900.0
# Requests in five minutes: anonymous, with the token of a free account, of a PRO account.
_QUOTAS = {"api": (500, 1000, 2500), "resolvers": (3000, 5000, 12000)}
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d+)\s*;\s*t\s*=\s*(\d+)')


def asked_seconds(headers: Mapping[str, str], status: int) -> float:
    """How long to wait, by Retry-After and, after a 429, by RateLimit; 0 where nobody says."""
    seconds = _retry_after(headers.get("Retry-After", ""))
    if status == 429:  # in other answers it only tells when the next window begins
        limits = _LIMIT.findall(headers.get("RateLimit", ""))
        seconds = max([seconds, *(float(reset) for _, left, reset in limits if int(left) == 0)])
    return min(seconds, LONGEST_ASKED_SECONDS)


def describe_limit(headers: Mapping[str, str], *, has_token: bool) -> tuple[str, str]:
    """A 429 in words, and what would raise the limit."""
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
    """A number of seconds, whole or not, or a date; 0 for everything else."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text)
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _seconds_until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError, OSError):  # no date, or one that no clock can show
        return 0.0
