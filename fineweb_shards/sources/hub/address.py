"""Read from a signed address how long it holds.

The hub answers `/resolve/` with an address at a CDN that is a permission in itself, for about an hour. Kept
for a file, it saves one request to the hub for every range; the hub counts those.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

# A little earlier, because requests that are under way must still be answered.
_SHARE_OF_LIFETIME = 0.9
_LONGEST_MARGIN_SECONDS = 60.0
# For an address that does not tell, or tells nonsense, as it seems to if this machine's clock is wrong: then
# the CDN's refusal is what ends it.
_UNKNOWN_LIFETIME_SECONDS = 1800.0
_LONGEST_LIFETIME_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bytes of a file are, for a while."""

    url: str = field(repr=False)  # it holds a signature, which belongs in no log
    good_until: float  # on this process's monotonic clock

    @classmethod
    def received(cls, url: str) -> Address:
        """Return the address that has just been received."""
        left = lifetime_seconds(url, time.time())
        margin = min(_LONGEST_MARGIN_SECONDS, left * (1 - _SHARE_OF_LIFETIME))
        return cls(url, time.monotonic() + left - margin)

    @property
    def is_good(self) -> bool:
        """Whether it is still to be used."""
        return time.monotonic() < self.good_until


def lifetime_seconds(url: str, now: float) -> float:
    """Return how long an address holds from `now` on, by CloudFront's and S3's parameters in it."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        if "Expires" in query:
            expires = float(query["Expires"])
        else:
            signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            expires = signed.timestamp() + float(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        return _UNKNOWN_LIFETIME_SECONDS
    left = expires - now
    return left if 0 < left <= _LONGEST_LIFETIME_SECONDS else _UNKNOWN_LIFETIME_SECONDS
