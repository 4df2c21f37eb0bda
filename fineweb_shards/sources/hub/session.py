"""The HTTP session for all requests to the hub, those of huggingface_hub and datasets included.

By default the clients send requests without a timeout, retry for 23 s (or as long as a 429 says, five times),
and print messages of their own. In this session every request has a timeout, transient failures are retried
by our retrier, and all others are reported at once. Requests that the hub counts wait for its quota
(quota.py). The bytes of files don't come this way: see connections.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub.environment import check_token
from fineweb_shards.sources.hub.errors import (
    TRANSIENT_STATUSES,
    check_json,
    is_hub,
    request_error,
    status_error,
)
from fineweb_shards.sources.hub.quota import Quota
from fineweb_shards.system.retry import Retrier

ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 10.0


def open_session(
    retrier: Retrier | None, quota: Quota | None = None, answer_seconds: float = ANSWER_SECONDS
) -> None:
    """Make all further requests of this process use our session. Without a retrier a failure is raised at
    once, for requests that must not be sent twice."""
    check_token(get_token())
    set_client_factory(partial(_make_session, retrier, quota, answer_seconds))


def _make_session(retrier: Retrier | None, quota: Quota | None, answer_seconds: float) -> HubSession:
    try:
        return HubSession(retrier, quota, answer_seconds)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:  # from an unusable proxy
        raise HubError(
            f"The proxy in the environment can't be used: {error}",
            "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.",
        ) from None


class HubSession(httpx2.Client):
    """A session like huggingface_hub's own, but with our timeouts and retries."""

    def __init__(self, retrier: Retrier | None, quota: Quota | None, answer_seconds: float) -> None:
        timeout = httpx2.Timeout(answer_seconds, connect=min(answer_seconds, _CONNECT_SECONDS))
        super().__init__(
            event_hooks={"request": [_respect_offline_mode]}, follow_redirects=True, timeout=timeout
        )
        self._hub_retrier = retrier
        self._quota = quota

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if not _should_retry(request, streamed=bool(options.get("stream"))):
            return super().send(request, **options)
        if self._hub_retrier is None:
            return self._send_once(request, options)
        return self._hub_retrier.call(partial(self._send_once, request, options))

    def _send_once(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        url = str(request.url)
        quota = self._quota if is_hub(url) else None
        if quota is not None:
            quota.take(url, has_token=get_token() is not None)
        try:
            response = super().send(request, **options)
        except httpx2.RequestError as error:
            raise request_error(url, error) from None
        if quota is not None:  # by the hub's own answer, not by that of a CDN to which it redirects
            first = (*response.history, response)[0]
            quota.learn(url, first.status_code, first.headers)
        if response.status_code in TRANSIENT_STATUSES:
            response.close()
            raise status_error(response)
        if "/api/" in request.url.path and response.status_code == 200 and not options.get("stream"):
            check_json(response)
        return response


def _respect_offline_mode(request: httpx2.Request) -> None:
    if constants.is_offline_mode():
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")


def _should_retry(request: httpx2.Request, *, streamed: bool) -> bool:
    """Tell whether our retrier handles a request: if it is about files, but not the clients' telemetry. A
    body that can be read only once is left to the client, which can rewind it."""
    path = request.url.path
    about_files = streamed or any(part in path for part in ("/resolve/", "/api/datasets/", "/api/models/"))
    return about_files and isinstance(request.stream, httpx2.ByteStream)
