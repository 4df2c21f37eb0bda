"""The HTTP session for all requests to the hub, those of huggingface_hub and datasets included.

By default the clients send requests without a timeout, retry for 23 s (or, after a 429, five times for as long as it
says), and print their own messages. In this session every request has a timeout, our retrier handles transient
failures, and all others are reported at once. The bytes of files are fetched by `send_get` instead.

The hub limits requests per window of five minutes, separately for `/resolve/` ("resolvers") and its API ("api"). Its
answers say how many are left (`RateLimit`). All processes of a run share these numbers in one small file (`Quota`), so
that they wait together, before a 429 instead of after it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled
from urllib3.util import Retry, Timeout, make_headers

from fineweb_shards.errors import HubError
from fineweb_shards.storage.hub_environment import check_token, proxy_for
from fineweb_shards.storage.hub_errors import (
    LONGEST_REQUESTED_SECONDS,
    host_of,
    httpx,
    is_hub,
    read_limits,
    request_error,
    requested_wait_seconds,
    status_error,
    what_raises_limit,
    what_to_check,
)
from fineweb_shards.storage.place import TRANSIENT_STATUSES
from fineweb_shards.system.retry import Clock, Retrier, TransientError
from fineweb_shards.system.shared_memory import SharedValue
from fineweb_shards.system.shell_commands import install_command

QUOTA_FILE_NAME = "hub-quota.json"
# Spreads out the processes' requests after a wait.
_SPREAD_SECONDS = 1.0
_SAME_WINDOW_SECONDS = 5.0


class Quota:
    """What is left of one hub's quotas. The processes share a file in `folder`; None: this process is alone. All of
    them must use the same clock, such as the system's."""

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        self._shared = SharedValue(None if folder is None else folder / QUOTA_FILE_NAME)
        self._clock = clock or Clock()

    def take(self, url: str) -> None:
        """Count a request about to be sent; TransientError if it must wait for the next window."""
        now = self._clock.now()
        with self._shared.changing() as value:
            _, state = _state_of(value, url)
            wait = state["until"] - now
            if 0 < wait <= LONGEST_REQUESTED_SECONDS and state["left"] <= 0:
                seconds = wait + random.uniform(0, min(_SPREAD_SECONDS, wait))
                raise TransientError(f"{host_of(url)}: the rate limit is used up", seconds, what_raises_limit())
            if wait <= 0 and state["quota"]:  # a new window
                state |= {"left": state["quota"], "until": now + state["window"]}
            state["left"] = max(0, state["left"] - 1)

    def learn(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        wait = requested_wait_seconds(headers, status) if status == 429 else 0.0
        limits, now = read_limits(headers), self._clock.now()
        if not limits and not wait:
            return
        with self._shared.changing() as value:
            kind, state = _state_of(value, url)
            for limit in (limit for limit in limits if limit.kind == kind):
                until = now + limit.reset_seconds
                same = abs(until - state["until"]) < _SAME_WINDOW_SECONDS
                # Within a window it only decreases: answers arrive in any order, and other requests are in flight.
                state["left"] = min(state["left"], limit.left) if same else limit.left
                state["until"] = until
                state |= {"quota": limit.quota, "window": limit.window_seconds} if limit.quota else {}
            if wait:
                state |= {"left": 0, "until": now + wait}


def _state_of(value: dict[str, Any], url: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of quota that a request counts towards, and its entry in the shared value."""
    kind = "resolvers" if "/resolve/" in urlsplit(url).path else "api"
    known, unknown = value.get(kind), {"left": 0, "until": 0.0, "quota": 0, "window": 0}
    if not isinstance(known, dict) or known.keys() != unknown.keys():
        known = value[kind] = unknown
    return kind, known


ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 10.0


def open_session(retrier: Retrier, quota: Quota | None = None, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Make this process's requests use our session from now on."""
    check_token(get_token())
    set_client_factory(partial(HubSession, retrier, quota, answer_seconds))


class HubSession(httpx.Client):
    """A session like huggingface_hub's own, but with our timeouts and retries."""

    def __init__(self, retrier: Retrier, quota: Quota | None, answer_seconds: float) -> None:
        self._hub_retrier = retrier
        self._quota = quota
        timeout = httpx.Timeout(answer_seconds, connect=min(answer_seconds, _CONNECT_SECONDS))
        try:
            super().__init__(follow_redirects=True, timeout=timeout)
        except (ValueError, ImportError, httpx.InvalidURL) as error:  # from an unusable proxy
            hint = "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."
            raise HubError(f"The proxy in the environment can't be used: {error}", hint) from None

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        # Our retrier handles requests about files, not the clients' telemetry. Only the client can rewind and resend a
        # streamed body.
        names = ("/resolve/", "/api/datasets/", "/api/models/")
        about_files = options.get("stream") or any(name in request.url.path for name in names)
        if about_files and isinstance(request.stream, httpx.ByteStream):
            return self._hub_retrier.call(partial(self._send_once, request, options))
        return super().send(request, **options)

    def _send_once(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        url = str(request.url)
        quota = self._quota if is_hub(url) else None
        if quota is not None:
            quota.take(url)
        try:
            response = super().send(request, **options)
        except httpx.RequestError as error:
            raise request_error(url, error) from None
        if quota is not None:  # from the hub's own answer, not from that of a CDN it redirects to
            first = (*response.history, response)[0]
            quota.learn(url, first.status_code, first.headers)
        answered_by = str(response.request.url)
        if response.status_code in TRANSIENT_STATUSES:
            response.close()
            raise status_error(answered_by, response.status_code, response.headers)
        if "/api/" in request.url.path and response.status_code == 200 and not options.get("stream"):
            try:
                response.json()
            except (ValueError, RecursionError):  # from a proxy, or a network's login page
                reason = f"{host_of(answered_by)}: the answer is not JSON, so not the hub's"
                raise TransientError(reason, advice=what_to_check(answered_by)) from None
        return response


# Fetching ranges of files, over pooled connections
#
# With urllib3, not the session of the hub's clients: httpx takes 3.6 s of CPU time for a GiB of body, urllib3 1.2 s,
# and workers need that time for encoding. Certificates and proxies are those of the session.

_KEPT_CONNECTIONS = 64  # to one host
_MOST_REDIRECTS = 5


def send_get(
    url: str, headers: Mapping[str, str], timeout_seconds: float, *, follow_redirects: bool
) -> urllib3.BaseHTTPResponse:
    """Send a GET request, without retries, and return the answer with its body unread."""
    redirects = _MOST_REDIRECTS if follow_redirects else False
    return _connections(proxy_for(url)).request(
        "GET",
        url,
        headers=dict(headers),
        preload_content=False,
        redirect=follow_redirects,
        retries=Retry(total=None, connect=False, read=False, status=False, other=False, redirect=redirects),
        timeout=Timeout(connect=timeout_seconds, read=timeout_seconds),
    )


@cache
def _connections(proxy: str | None) -> urllib3.PoolManager:
    trust = httpx.create_ssl_context()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    parts = urlsplit(proxy)
    if parts.scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError:
            problem = "The proxy in the environment can't be used: SOCKS needs the package PySocks."
            raise HubError(problem, f"Install it: {install_command('PySocks')}") from None
        return SOCKSProxyManager(proxy, maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    password = unquote(parts.netloc.rpartition("@")[0])
    headers = make_headers(proxy_basic_auth=password) if password else None
    return urllib3.ProxyManager(proxy, maxsize=_KEPT_CONNECTIONS, ssl_context=trust, proxy_headers=headers)
