"""Keep the hub's quotas for all processes of a run together: wait before one is used up, not after a 429.

The hub counts requests in windows of five minutes: those to `/resolve/` ("resolvers") and those to its API ("api").
Its answers say how many are left (`RateLimit`). All processes share what they have learned in one small file, so that
they wait once, together, and none of them asks while another one was told to wait.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fineweb_shards.storage.hub_errors import (
    LONGEST_REQUESTED_SECONDS,
    read_limits,
    requested_wait_seconds,
    what_raises_limit,
)
from fineweb_shards.system.retry import Clock, TransientError
from fineweb_shards.system.shared_memory import SharedValue

FILE_NAME = "hub-quota.json"
# After a wait the processes don't all come back in the same instant.
_SPREAD_SECONDS = 1.0
_SAME_WINDOW_SECONDS = 5.0


class Quota:
    """What is left of the quotas of one hub. `folder` holds the file; None: this process is alone. The clock must be
    the same one for all processes, as the system's is."""

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        self._shared = SharedValue(None if folder is None else folder / FILE_NAME)
        self._clock = clock or Clock()

    def take(self, url: str) -> None:
        """Count a request that is about to be sent; TransientError if it has to wait for the next window."""
        kind, host = _kind_of(url), urlsplit(url).netloc
        now = self._clock.now()
        with self._shared.changing() as value:
            state = _state_of(value, kind)
            wait = state["until"] - now
            if 0 < wait <= LONGEST_REQUESTED_SECONDS and state["left"] <= 0:
                seconds = wait + random.uniform(0, min(_SPREAD_SECONDS, wait))
                raise TransientError(f"{host}: the rate limit is used up", seconds, what_raises_limit())
            if wait <= 0 and state["quota"]:  # a new window
                state |= {"left": state["quota"], "until": now + state["window"]}
            state["left"] = max(0, state["left"] - 1)

    def learn(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        """Note what an answer says about the quotas."""
        kind, now = _kind_of(url), self._clock.now()
        wait = requested_wait_seconds(headers, status) if status == 429 else 0.0
        limits = [limit for limit in read_limits(headers) if limit.kind == kind]
        if not limits and not wait:
            return
        with self._shared.changing() as value:
            state = _state_of(value, kind)
            for limit in limits:
                until = now + limit.reset_seconds
                same = abs(until - state["until"]) < _SAME_WINDOW_SECONDS
                # In one window it only gets less: answers arrive in any order, and others are under way.
                state["left"] = min(state["left"], limit.left) if same else limit.left
                state["until"] = until
                state |= {"quota": limit.quota, "window": limit.window_seconds} if limit.quota else {}
            if wait:
                state |= {"left": 0, "until": now + wait}


def _kind_of(url: str) -> str:
    return "resolvers" if "/resolve/" in urlsplit(url).path else "api"


def _state_of(value: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return what is known about one quota, as a part of the shared value."""
    known, unknown = value.get(kind), {"left": 0, "until": 0.0, "quota": 0, "window": 0}
    if not isinstance(known, dict) or known.keys() != unknown.keys():
        known = value[kind] = unknown
    return known
